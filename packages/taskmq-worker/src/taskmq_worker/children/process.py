"""One child process as its parent holds it: started, talked to, killed with its group, reaped."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from taskmq.clock import SYSTEM_CLOCK
from taskmq_worker.children import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

_monotonic = SYSTEM_CLOCK.monotonic

_CHUNK = 1 << 16
_OFTEN = 0.02


class Child:
    """A started child. Only its slot thread uses it, apart from what says otherwise."""

    def __init__(self, setup: wire.Setup) -> None:
        self.jobs, jobs_inside = socket.socketpair()
        # Both ends stay here: what nobody has read can be taken back.
        self._starts, self._unread = socket.socketpair()
        self.control, control_inside = socket.socketpair()
        life_inside, self._life = os.pipe()
        inside = (
            jobs_inside.fileno(),
            self._unread.fileno(),
            control_inside.fileno(),
            life_inside,
        )
        try:
            # Our own module, found by the interpreter that runs the worker.
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "taskmq_worker.children", *map(str, inside)],
                stdin=subprocess.DEVNULL,
                pass_fds=inside,
                # A session, hence a process group, of its own: a kill takes its children along,
                # and signals of a terminal go to the parent alone.
                start_new_session=True,
            )
        except BaseException:
            self._close_channels()
            raise
        finally:
            jobs_inside.close()
            control_inside.close()
            os.close(life_inside)
        self.pid = self._process.pid
        self.watch = _pidfd(self.pid)
        """A descriptor that is readable once the child has ended; None where there is no such thing."""
        self.closed_at: float | None = None
        self.gone = False
        """Set by the control thread when the child has hung up."""
        self.handed = 0
        self.retire = False
        self._frames = wire.Frames()
        self._buffer = memoryview(bytearray(_CHUNK))
        self._out = bytearray()
        self.send(setup)

    # --- talking ---

    @property
    def sending(self) -> bool:
        """Whether something waits for room in the channel."""
        return bool(self._out)

    def send(self, message: wire.ToChild) -> None:
        """Send as much as fits now; `flush` sends the rest. Never blocks, a dead child is no error."""
        self._out += wire.frame(message)
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        try:
            while self._out:
                del self._out[: self.jobs.send(self._out, socket.MSG_DONTWAIT)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._out.clear()

    def send_control(self, data: bytes) -> None:
        """Send on the control channel; one thread at a time. A child that hears nothing is let be."""
        rest = memoryview(data)
        until = _monotonic() + 1.0
        while rest:
            try:
                rest = rest[self.control.send(rest, socket.MSG_DONTWAIT) :]
            except (BlockingIOError, InterruptedError):
                left = until - _monotonic()
                if left <= 0:
                    raise TimeoutError("the child does not read its control channel") from None
                select.select([], [self.control], [], left)

    def start(self, numbers: Sequence[int]) -> None:
        """Let these jobs start, in this order. At most a hundred are unread at any time, so they fit."""
        with contextlib.suppress(OSError):
            self._starts.sendall(b"".join(map(wire.NUMBER.pack, numbers)))

    def take_back(self) -> set[int]:
        """Numbers that the child has not read: from now on it can't start these jobs."""
        taken = b""
        with contextlib.suppress(OSError):
            while data := self._unread.recv(4096, socket.MSG_DONTWAIT):
                taken += data
        return {number for (number,) in wire.NUMBER.iter_unpack(taken)}

    def receive(self) -> list[wire.ToParent] | None:
        """What has arrived completely; None once the channel is at its end.

        Raises:
            BrokenChannel: It is nothing that a child of ours says.
        """
        messages: list[wire.ToParent] = []
        while True:
            try:
                count = self.jobs.recv_into(self._buffer, _CHUNK, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return messages
            except OSError:
                count = 0
            if not count:
                return messages or None
            try:
                messages.extend(map(wire.to_parent.decode, self._frames.feed(self._buffer[:count])))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise wire.BrokenChannel(str(error)) from error
            if count < _CHUNK:
                return messages

    def await_ready(self, timeout: float) -> wire.Ready | wire.Broken:
        """Wait until the app is imported, or can't be."""
        until = _monotonic() + timeout
        while True:
            left = until - _monotonic()
            if left <= 0:
                return wire.Broken(f"the app was not imported within {timeout:g} s", "")
            # Not only the socket: a process started at the import may hold the other end.
            _poll([self.jobs.fileno(), self.watch], min(left, 1.0))
            messages = self.receive()
            for message in messages or ():
                if isinstance(message, (wire.Ready, wire.Broken)):
                    return message
            if messages is None or (not messages and self.has_ended()):
                self.kill()
                self.await_end(5.0)
                return wire.Broken(f"its process {self.epitaph()} while it imported the app", "")
            self.flush()

    # --- ending ---

    def has_ended(self) -> bool:
        """Whether the process has ended; it is not reaped, so that its group keeps its number."""
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            ended = self._process.poll() is not None
            if ended:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            return ended
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def kill(self) -> None:
        """End the child and whatever it has started. Any thread may do so before `reap`."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def dismiss(self) -> None:
        """Let the child end by itself: there will be no more jobs."""
        if self.closed_at is None:
            self.closed_at = _monotonic()
            # The end of what stands here already is kept; only then does the child read the end.
            with contextlib.suppress(OSError):
                self._starts.shutdown(socket.SHUT_WR)

    def await_end(self, timeout: float) -> bool:
        """Wait until the process has ended; whether it has."""
        until = _monotonic() + timeout
        while not self.has_ended():
            left = until - _monotonic()
            if left <= 0:
                return False
            _poll([self.watch], min(left, 1.0 if self.watch is not None else _OFTEN))
        return True

    def epitaph(self) -> str:
        """How the process ended, in words; only once it has."""
        self.kill()
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (by hand, or by the kernel for want of memory)" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"

    def reap(self) -> None:
        """Kill what is left of the group, collect the exit code and free the channels."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        self._close_channels()
        if self.watch is not None:
            os.close(self.watch)
            self.watch = None

    def hang_up(self) -> None:
        """Make the control thread's read return."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)

    def _close_channels(self) -> None:
        self.hang_up()
        for channel in (self.jobs, self._starts, self._unread, self.control):
            channel.close()
        os.close(self._life)


def _pidfd(pid: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _poll(descriptors: Sequence[int | None], timeout: float) -> set[int]:
    poll = select.poll()
    for descriptor in descriptors:
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(timeout * 1000)}
