"""The control channel inside a child: flags come in, requests go out, whatever the main thread does."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from taskmq import errors
from taskmq.context import AttemptControl
from taskmq.events import EventSink, event_to_json
from taskmq_worker.children import wire

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from taskmq.events import Event
    from taskmq.transport.types import Message

_messages = msgspec.msgpack.Encoder()


class Control:
    """Sends requests from any thread, and hears what the parent says on a thread of its own."""

    def __init__(self, channel: socket.socket, on_hang_up: Callable[[], None]) -> None:
        self._channel = channel
        self._on_hang_up = on_hang_up
        self._sending = threading.Lock()
        self._ids = itertools.count()
        self._waiting: dict[int, SimpleQueue[wire.Reply]] = {}
        self._attempt: ChildControl | None = None
        self._early: wire.Flags | None = None

    def listen(self) -> None:
        """Start the thread that hears the parent."""
        threading.Thread(target=self._listen, name="taskmq-control", daemon=True).start()

    def begin(self, receipt: str) -> ChildControl:
        """The control of the attempt that starts now."""
        attempt = ChildControl(self, receipt)
        self._attempt = attempt
        early = self._early
        if early is not None and early.receipt == receipt:
            attempt.heed(early)
        return attempt

    def tell(self, message: wire.ControlToParent) -> None:
        """Send something that needs no answer."""
        data = wire.frame(message)
        with self._sending:
            self._channel.sendall(data)

    def ask(self, method: str, receipt: str = "", body: bytes = b"") -> bytes:
        """Have the parent do something, and wait for its answer.

        Raises:
            TaskmqError: What it raised there.
        """
        number = next(self._ids)
        reply: SimpleQueue[wire.Reply] = SimpleQueue()
        self._waiting[number] = reply
        try:
            self.tell(wire.Request(number, method, receipt, body))
            answer = reply.get()
        except OSError as error:
            raise errors.TransportUnavailable(f"the worker is gone: {error}") from error
        finally:
            del self._waiting[number]
        if answer.error:
            raise _error(answer)
        return answer.body

    def _listen(self) -> None:
        frames = wire.Frames()
        while data := self._channel.recv(1 << 16):
            for each in frames.feed(data):
                self._heed(wire.control_to_child.decode(each))
        # The parent has hung up: on this child that is to end, or because it is gone itself.
        for waiting in list(self._waiting.values()):
            waiting.put(wire.Reply(0, error="TransportUnavailable", message="the worker is gone"))
        self._on_hang_up()

    def _heed(self, message: wire.ControlToChild) -> None:
        if isinstance(message, wire.Reply):
            waiting = self._waiting.get(message.id)
            if waiting is not None:
                waiting.put(message)
            return
        self._early = message
        attempt = self._attempt
        if attempt is not None and attempt.receipt == message.receipt:
            attempt.heed(message)


class ChildControl(AttemptControl):
    """What the parent and one attempt say to each other."""

    def __init__(self, control: Control, receipt: str) -> None:
        self.receipt = receipt
        self._control = control

    def heed(self, flags: wire.Flags) -> None:
        """Take over what the worker says."""
        self.cancelled = flags.cancelled
        self.lost = flags.lost
        self.stopping = flags.stopping

    def heartbeat(self) -> None:
        """Extend the lease now."""
        self._control.ask("heartbeat", self.receipt)

    def publish_now(self, messages: Sequence[Message]) -> None:
        """Enqueue at once; refused when the delivery is lost."""
        self._control.ask("publish", self.receipt, _messages.encode(messages))


class ParentSink(EventSink):
    """Sends the events of a child to its worker."""

    in_producers: ClassVar[bool] = True

    def __init__(self, control: Control) -> None:
        self._control = control

    def emit(self, events: Sequence[Event]) -> None:
        """Send a batch."""
        # Without a worker there is nobody to tell.
        with suppress(OSError):
            self._control.tell(wire.Told([event_to_json(event) for event in events]))


def _error(answer: wire.Reply) -> errors.TaskmqError:
    kind: Any = getattr(errors, answer.error, None)
    if isinstance(kind, type) and issubclass(kind, errors.TransportError):
        return kind(answer.message)
    if kind in (errors.ConfigError, errors.EncodeError, errors.TaskError):
        made: errors.TaskmqError = kind(answer.message)
        return made
    return errors.TransportError(f"{answer.error}: {answer.message}")
