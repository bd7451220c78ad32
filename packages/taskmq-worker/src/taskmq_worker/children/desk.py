"""The parent's side of control: one thread for each slot, which does what its child asks for."""

from __future__ import annotations

import contextlib
import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from taskmq.errors import LeaseLost, TaskmqError
from taskmq.events import event_from_json
from taskmq.transport.types import Message
from taskmq_worker.children import wire
from taskmq_worker.children.relay import perform

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq_worker.children.process import Child
    from taskmq_worker.pools.base import Surroundings
    from taskmq_worker.reservation import Reservation

_log = logging.getLogger("taskmq.worker")

_messages = msgspec.msgpack.Decoder(list[Message])


class Desk:
    """Serves the child of one slot after the other, and hears when one hangs up."""

    def __init__(self, around: Surroundings, on_gone: Callable[[], None]) -> None:
        self._around = around
        self._on_gone = on_gone
        self._children: SimpleQueue[Child | None] = SimpleQueue()
        self._sending = threading.Lock()

    def serve(self, child: Child) -> None:
        """Listen to this child from now on."""
        self._children.put(child)

    def close(self) -> None:
        """End the thread once the last child has hung up."""
        self._children.put(None)

    def run(self) -> None:
        """The thread."""
        while (child := self._children.get()) is not None:
            try:
                self._listen(child)
            except (OSError, ValueError, msgspec.MsgspecError, wire.BrokenChannel) as error:
                _log.debug("the control channel of child %s broke: %s", child.pid, error)
            child.gone = True
            self._on_gone()

    def flag(self, child: Child, reservation: Reservation) -> None:
        """Tell a child what the worker knows of the attempt that it runs."""
        flags = wire.Flags(
            reservation.delivery.receipt,
            reservation.cancelled,
            reservation.lost,
            reservation.stopping,
        )
        self._send(child, flags)

    def _listen(self, child: Child) -> None:
        frames = wire.Frames()
        while data := child.control.recv(1 << 16):
            for each in frames.feed(data):
                message = wire.control_to_parent.decode(each)
                if isinstance(message, wire.Request):
                    self._send(child, self._answer(message))
                else:
                    self._tell(message)

    def _answer(self, request: wire.Request) -> wire.Reply:
        try:
            return wire.Reply(request.id, self._do(request))
        except TaskmqError as error:
            return wire.Reply(request.id, error=type(error).__name__, message=str(error))
        # A defect of a transport must not leave the task waiting for ever.
        except Exception as error:  # noqa: BLE001
            _log.exception("%s failed on behalf of a child", request.method)
            return wire.Reply(request.id, error=type(error).__name__, message=str(error))

    def _do(self, request: wire.Request) -> bytes:
        around = self._around
        if request.method.startswith("transport."):
            return perform(
                around.app.transport, request.method.removeprefix("transport."), request.body
            )
        reservation = around.holdings.get(request.receipt)
        if reservation is None:
            raise LeaseLost("the job belongs to another worker now, or has ended")
        if request.method == "publish":
            around.keeper.publish(reservation, _messages.decode(request.body))
        else:
            around.keeper.extend_now(reservation)
        return b""

    def _tell(self, message: wire.Told) -> None:
        events = self._around.app.events
        for data in message.events:
            event = event_from_json(data)
            events.emit(
                event.type,
                job=event.job,
                task=event.task,
                queue=event.queue,
                attempt=event.attempt,
                worker=event.worker,
                **event.data,
            )

    def _send(self, child: Child, message: wire.ControlToChild) -> None:
        # A child that hears nothing must not hold up its parent for longer than this.
        with contextlib.suppress(OSError), self._sending:
            child.send_control(wire.frame(message))
