"""What the roles of the redis transport share: the domain's base, receipts, and encoded things."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from taskmq.transport.types import Completion, ErrorInfo, Payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq_redis.connection import Server

encode: Final = msgspec.msgpack.Encoder().encode
decode_error: Final = msgspec.msgpack.Decoder(ErrorInfo).decode
decode_completion: Final = msgspec.msgpack.Decoder(Completion).decode
HEADS: Final = 256
"""A worker of more queues than this is told the head by `reserve` only."""


class Store:
    """A server and the keys of this transport in it."""

    _server: Server
    _base: bytes
    _queues: dict[str, tuple[str, ...]]
    """The queues that the workers of this process reserve from."""

    def _call(self, name: str, *arguments: Any, repeat: bool = True) -> Any:
        return self._server.call(name, *arguments, base=self._base, repeat=repeat)

    def _served(self, worker: str) -> Sequence[str]:
        """The queues of a worker, for the news that every reply carries."""
        return self._queues.get(worker, ())


_LONGEST: Final = 4_000_000_000.0


def micros(seconds: float) -> int:
    """A time or a duration as the scripts take it: whole microseconds, none longer than a century."""
    return round((seconds if seconds < _LONGEST else _LONGEST) * 1_000_000)


def seconds(text: bytes | int) -> float:
    """A time or a duration as the scripts give it."""
    return int(text) / 1_000_000


def read_fixed(text: bytes) -> tuple[float, int, str, str]:
    """What never changes of a plain job (core.lua): enqueued_at, priority, queue, task."""
    end = 55 + int(text[50:55])
    return (
        int(text[16:32]) / 1_000_000,
        9 - int(text[48:50]),
        text[55:end].decode(),
        text[end:].decode(),
    )


def receipt_of(token: bytes, job_id: str) -> str:
    """What a holder is given: the token that must not be guessed, and the job.

    Dots are escaped, because a completion token ends its receipt with one.
    """
    return f"{token.decode()}-{_escape(job_id)}"


def split_receipt(receipt: str) -> tuple[str, str]:
    """The job's id and the token of a receipt; for what is no receipt an id that no job has."""
    token, _, job_id = receipt.partition("-")
    return _unescape(job_id), token


def shown_receipt(text: bytes) -> str:
    """A receipt as the scripts write it."""
    token, _, job_id = text.decode().partition("-")
    return f"{token}-{_escape(job_id)}"


def _escape(job_id: str) -> str:
    if "." in job_id or "%" in job_id:
        return job_id.replace("%", "%25").replace(".", "%2E")
    return job_id


def _unescape(text: str) -> str:
    return text.replace("%2E", ".").replace("%25", "%") if "%" in text else text


def error_words(error: ErrorInfo | None) -> list[Any] | bool:
    """An error as the scripts take it: its encoded form and its reason; False for none."""
    return False if error is None else [encode(error), error.reason]


def result_bytes(result: Payload | None) -> bytes | bool:
    """A result as it is stored; False for none."""
    return False if result is None else result.content_type.encode() + b"\0" + result.data


def read_result(data: bytes | None) -> Payload | None:
    """A stored result."""
    if data is None:
        return None
    content_type, _, body = data.partition(b"\0")
    return Payload(content_type.decode(), body)


def completion_words(completion: Completion) -> list[Any]:
    """An outcome from outside as the scripts take it."""
    error = completion.error
    return [
        encode(completion),
        completion.state,
        completion.retryable,
        result_bytes(completion.result),
        False if error is None else encode(error),
        "" if error is None else error.reason,
    ]


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """A flat reply of fields and values."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
