"""Asking a worker how it is. Imports next to nothing: probes run every few seconds, for ever."""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any, NamedTuple, cast

OLD_AFTER = 15.0
"""A health file that was written longer ago than this belongs to a worker that writes no more."""
_LARGEST = 1_000_000


class Question(NamedTuple):
    """What is asked: of a file or of `host:port`, and whether only liveness counts."""

    file: str | None = None
    address: tuple[str, int] | None = None
    live: bool = False
    timeout: float = 2.0
    quiet: bool = False


class Unanswered(Exception):
    """There is no answer; the text says why."""


def plain(words: list[str]) -> int | None:
    """Answer the usual spellings of the command; None for what click should read and explain."""
    asked = _parse(words)
    return None if asked is None else answer(asked)


def answer(asked: Question) -> int:
    """Ask, print the answer as JSON, and return the exit code: 0 healthy, 1 not."""
    try:
        report = ask(asked)
    except Unanswered as why:
        report = {"alive": False, "ready": False, "reasons": [str(why)]}
    good = bool(report.get("alive")) and (asked.live or bool(report.get("ready")))
    if not asked.quiet:
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
    return 0 if good else 1


def ask(asked: Question) -> dict[str, Any]:
    """The report.

    Raises:
        Unanswered: The file is missing, old or damaged; nobody listens, or the answer is none.
    """
    if asked.address is not None:
        return _from_server(asked.address, asked.timeout)
    return _from_file(asked.file or "")


def _from_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            report = _report(file.read(_LARGEST))
    except OSError as error:
        raise Unanswered(
            f"no health file {path} ({error.strerror}): no worker has started with it, or it has ended"
        ) from error
    age = _now() - float(report.get("at") or 0.0)
    if not -1.0 < age < OLD_AFTER:
        raise Unanswered(f"the health file {path} is old: its worker writes it no more")
    return report


def _from_server(address: tuple[str, int], timeout: float) -> dict[str, Any]:
    host, port = address
    try:
        with socket.create_connection(address, timeout) as connection:
            request = f"GET / HTTP/1.0\r\nHost: {host}\r\n\r\n"
            connection.sendall(request.encode())
            received = b""
            while len(received) < _LARGEST and (part := connection.recv(65536)):
                received += part
    except (OSError, ValueError, OverflowError) as error:
        raise Unanswered(f"no answer from {host}:{port}: {error}") from error
    return _report(received.partition(b"\r\n\r\n")[2])


def _report(data: bytes) -> dict[str, Any]:
    try:
        report: Any = json.loads(data)
    except ValueError as error:
        raise Unanswered("what answers there is no worker's health") from error
    if type(report) is not dict or "alive" not in report:
        raise Unanswered("what answers there is no worker's health")
    return cast("dict[str, Any]", report)


def _now() -> float:
    """The clock that workers stamp their reports with; it runs through suspend where one does."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def parse_url(text: str) -> tuple[str, int] | None:
    """The address in "http://host:port", with or without the scheme and a last slash; else None."""
    bare = text.removeprefix("http://").rstrip("/")
    host, colon, port = bare.rpartition(":")
    if not colon or "/" in bare or not port.isdecimal():
        return None
    return host.strip("[]") or "127.0.0.1", int(port)


_FLAGS = {"--live": "live", "--quiet": "quiet", "-q": "quiet", "--json": "json"}
_VALUES = ("--file", "--port", "--timeout")


def _parse(words: list[str]) -> Question | None:
    """The question in its usual spellings, None for what click should look at."""
    flags: set[str] = set()
    values: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if word in _FLAGS:
            flags.add(_FLAGS[word])
        elif name in _VALUES and (equals or left):
            values[name] = value if equals else left.pop(0)
        elif not word.startswith("-") and "URL" not in values:
            values["URL"] = word
        else:
            return None
    if len(values.keys() & {"--file", "--port", "URL"}) != 1:
        return None
    port = values.get("--port")
    address = parse_url(values.get("URL", f"127.0.0.1:{port}"))
    timeout = values.get("--timeout", "2")
    if (address is None and "--file" not in values) or not timeout.isdecimal() or timeout == "0":
        return None
    return Question(
        file=values.get("--file"),
        address=address,
        live="live" in flags,
        timeout=float(timeout),
        quiet="quiet" in flags,
    )
