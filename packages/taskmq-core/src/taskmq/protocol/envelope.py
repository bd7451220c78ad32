"""The envelope: everything about one call that travels from producer to worker.

Transports carry an encoded envelope as opaque bytes and route on the fields of
`taskmq.transport.types.Message`, which repeats the few that they need. Only what executes the task
decodes it. What changes during a job's life (attempt, deliveries, yields, due time) is counted by
the transport beside it; `attempt` here is the one the message was submitted with.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taskmq.errors import ProtocolError

VERSION = 1
"""The major version of the protocol. A worker refuses any other, and ignores unknown fields of its own."""


class Envelope(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One call of a task, encoded as a MessagePack map with short-lived defaults left out."""

    v: int
    id: str
    task: str
    queue: str
    priority: int = 0
    attempt: int = 1
    max_attempts: int = 1
    max_deliveries: int = 5
    ack: str = "on_success"
    eta: float | None = None
    expires_at: float | None = None
    timeout: float | None = None
    hard_timeout: float | None = None
    lease: float | None = None
    key: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int = 1
    store_result: bool = True
    headers: dict[str, Any] | None = None
    trace: dict[str, str] | None = None
    enqueued_at: float | None = None
    run: str | None = None
    step: str | None = None
    inputs: bytes | None = None
    """Of a step of a run: where its further arguments come from (`taskmq.workflow.inputs`)."""
    content_type: str = "application/msgpack"
    body: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode_envelope(envelope: Envelope) -> bytes:
    """Encode an envelope for the wire."""
    return _encoder.encode(envelope)


def decode_envelope(data: bytes) -> Envelope:
    """Decode an envelope.

    Raises:
        ProtocolError: The bytes are no envelope, or of another major version.
    """
    try:
        envelope = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"undecodable message: {error}") from error
    if envelope.v != VERSION:
        raise ProtocolError(
            f"unknown protocol version {envelope.v}: this worker reads version {VERSION}; "
            f"upgrade it, then replay the dead letter"
        )
    return envelope
