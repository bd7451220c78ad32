"""What travels between a worker and its children: frames of MessagePack over stream sockets.

A frame is four bytes of length and one message. Nothing here is ever unpickled: a child answers with
an encoded settlement, and the parent decodes it as one of a few known types.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Union

import msgspec

from taskmq.transport.types import (
    Ack,
    Bury,
    Defer,
    Delivery,
    Park,
    Release,
    Retry,
    Settlement,
    SettleResult,
    Yield,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBER = struct.Struct("<Q")
"""How the number of a job that may start is written."""
LENGTH = struct.Struct("<I")
LONGEST_FRAME = 1 << 30
"""A longer frame is none of ours: somebody else has written to the channel."""


class BrokenChannel(Exception):
    """The other side says what makes no sense."""


# --- jobs: parent to child ------------------------------------------------------------------------


class Setup(msgspec.Struct, array_like=True, tag="setup"):
    """The first frame: what a child needs to begin."""

    app_path: str
    worker: str
    path: list[str]
    argv: list[str]
    relayed: bool
    """The transport lives in the parent and is reached through `control`."""
    events: bool
    """Whether the parent wants to hear of events."""
    log_level: int | None
    """The parent's, when it shows its log; a child without handlers shows its own alike."""
    max_memory: int | None


class Job(msgspec.Struct, array_like=True):
    """One delivery, and the number that starts it."""

    number: int
    delivery: Delivery


class Jobs(msgspec.Struct, array_like=True, tag="jobs"):
    """Deliveries in the order in which they start."""

    jobs: list[Job]


class Settled(msgspec.Struct, array_like=True, tag="settled"):
    """The transport's answer to an outcome whose end hooks wait for it."""

    number: int
    result: SettleResult


ToChild = Union[Setup, Jobs, Settled]

# --- jobs: child to parent ------------------------------------------------------------------------


class Ready(msgspec.Struct, array_like=True, tag="ready"):
    """The app is imported."""

    tasks: list[str]
    transport: str | None
    """The URL that the child's app is configured with; None for an instance."""


class Broken(msgspec.Struct, array_like=True, tag="broken"):
    """The app can't be imported; the child ends."""

    message: str
    traceback: str


class Done(msgspec.Struct, array_like=True, tag="done"):
    """An attempt has ended."""

    number: int
    kind: int
    settlement: msgspec.Raw
    duration: float
    waits: bool = False
    """End hooks wait for the answer to the settlement; `HooksDone` follows."""
    retire: bool = False
    """The child has grown beyond its limit."""


class HooksDone(msgspec.Struct, array_like=True, tag="hooks"):
    """The end hooks of a job have run."""

    number: int


ToParent = Union[Ready, Broken, Done, HooksDone]

# --- control --------------------------------------------------------------------------------------


class Flags(msgspec.Struct, array_like=True, tag="flags"):
    """What the worker tells the attempt under a receipt."""

    receipt: str
    cancelled: bool
    lost: bool
    stopping: bool


class Reply(msgspec.Struct, array_like=True, tag="reply"):
    """The answer to a request: a body, or the name and text of an error."""

    id: int
    body: bytes = b""
    error: str = ""
    message: str = ""


class Request(msgspec.Struct, array_like=True, tag="request"):
    """Something that only the parent can do."""

    id: int
    method: str
    receipt: str = ""
    body: bytes = b""


class Told(msgspec.Struct, array_like=True, tag="told"):
    """Events of the child."""

    events: list[bytes]
    """As JSON, since their data may be anything."""


ControlToChild = Union[Flags, Reply]
ControlToParent = Union[Request, Told]

# --- frames ---------------------------------------------------------------------------------------

encoder = msgspec.msgpack.Encoder()
to_child = msgspec.msgpack.Decoder(ToChild)
to_parent = msgspec.msgpack.Decoder(ToParent)
control_to_child = msgspec.msgpack.Decoder(ControlToChild)
control_to_parent = msgspec.msgpack.Decoder(ControlToParent)


def frame(message: Any) -> bytes:
    """A message as it goes over a channel."""
    body = encoder.encode(message)
    return LENGTH.pack(len(body)) + body


class Frames:
    """Cuts what arrives into frames, and keeps the part of one that is still on its way."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """The frames that are complete with this.

        Raises:
            BrokenChannel: A length makes no sense.
        """
        held = self._data
        held += data
        at, end = 0, len(held)
        while end - at >= 4:
            (length,) = LENGTH.unpack_from(held, at)
            if length > LONGEST_FRAME:
                raise BrokenChannel(f"a frame of {length} bytes is announced")
            if end - at - 4 < length:
                break
            yield bytes(held[at + 4 : at + 4 + length])
            at += 4 + length
        if at:
            del held[:at]


_KINDS: tuple[type[Settlement], ...] = (Ack, Retry, Bury, Release, Park, Defer, Yield)
_KIND_OF = {kind: number for number, kind in enumerate(_KINDS)}
_decoders = [msgspec.msgpack.Decoder(kind) for kind in _KINDS]


def done(
    number: int, settlement: Settlement, duration: float, *, waits: bool, retire: bool
) -> Done:
    """The outcome of an attempt, ready to be sent."""
    raw = msgspec.Raw(encoder.encode(settlement))
    return Done(number, _KIND_OF[type(settlement)], raw, duration, waits, retire)


def settlement_of(message: Done) -> Settlement:
    """The settlement that an outcome carries."""
    settlement: Settlement = _decoders[message.kind].decode(message.settlement)
    return settlement
