"""One worker process of a supervisor: started with a lifeline, watched through its health file."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from taskmq.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_monotonic = SYSTEM_CLOCK.monotonic
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Replica:
    """A worker in a session of its own, so that a Ctrl-C at the terminal reaches the supervisor alone.

    Attributes:
        was_ready: It has once said that it takes jobs.
    """

    def __init__(self, command: Sequence[str], health_file: Path) -> None:
        self._health_file = health_file
        self.was_ready = False
        self.started_at = _monotonic()
        reader, self._lifeline = os.pipe()
        try:
            # The supervisor's own command line, no foreign input.
            self._process = subprocess.Popen(  # noqa: S603
                [*command, "--lifeline", str(reader), "--health-file", str(health_file)],
                pass_fds=[reader],
                start_new_session=True,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reader)
        self.pid = self._process.pid

    def look(self) -> None:
        """Learn whether it is ready by now."""
        if not self.was_ready:
            self.was_ready = bool(self.health().get("ready"))

    def health(self) -> dict[str, Any]:
        """What it last wrote of itself."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return _decode(self._health_file.read_bytes())
        return {"pid": self.pid, "ready": False, "reasons": ["it is starting, or has ended"]}

    def ended(self) -> int | None:
        """Its exit code, None while it runs."""
        code = self._process.poll()
        if code is not None and self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
            self._health_file.unlink(missing_ok=True)
        return code

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it by force: the supervisor itself is failing."""
        self._process.kill()
        self._process.wait()
        self.ended()


def watch_lifeline(fd: int, on_end: Callable[[], None]) -> None:
    """Call `on_end` once nobody holds the other end of this pipe any more."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(fd, 1):
                pass
        on_end()

    os.set_inheritable(fd, False)
    threading.Thread(target=watch, name="taskmq-lifeline", daemon=True).start()
