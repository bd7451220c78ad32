"""Signals of a worker's process, handled while it runs and given back afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from typing_extensions import Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_END = b"\x00"


class AbortRun(BaseException):
    """Raised in the main thread to end a body that runs there when the worker must leave."""


class Signals:
    """Counts SIGTERM and SIGINT and reports each; does nothing outside the main thread.

    They arrive through a wake-up descriptor that a thread of its own reads. A handler in Python runs
    only once the main thread's present C call is over, and one that comes just before a blocking
    call (or into a task of the pool `solo`) would wait for it.
    """

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal
        self._earlier: dict[signal.Signals, Any] = {}
        self._earlier_fd = -1
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._reader: threading.Thread | None = None
        self._aborting = False
        self._has_left = threading.Event()

    @classmethod
    def none(cls) -> Signals:
        """Signals that were never installed."""
        return cls(lambda _times: None)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            reader, writer = self._ends = socket.socketpair()
            writer.setblocking(False)
            self._reader = threading.Thread(
                target=self._read, args=(reader,), name="taskmq-signals", daemon=True
            )
            self._reader.start()
            self._earlier_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
            for number in _SIGNALS:
                self._earlier[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._ends is None or self._reader is None:
            return
        for number, handler in self._earlier.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._earlier_fd)
        reader, writer = self._ends
        with contextlib.suppress(OSError):
            writer.send(_END)
        self._reader.join(5)
        reader.close()
        writer.close()
        self._earlier, self._ends = {}, None

    def abort_main(self, has_left: threading.Event) -> None:
        """Interrupt what the main thread does with `AbortRun`, if signals are handled here."""
        if self._ends is None:
            return
        self._has_left = has_left
        self._aborting = True
        # Again and again until the handler has run: a signal just before a blocking call is late.
        while self._aborting and not has_left.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            has_left.wait(0.05)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._aborting:
            self._aborting = False
            if not self._has_left.is_set():
                raise AbortRun

    def _read(self, reader: socket.socket) -> None:
        times = 0
        while True:
            for number in reader.recv(64):
                if number == 0:
                    return
                if number in _SIGNALS and not self._aborting:
                    times += 1
                    self._on_signal(times)
