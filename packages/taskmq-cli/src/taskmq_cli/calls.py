"""Reading what a job carries, for people: its call, its result, its meta. Never fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from taskmq.transport.types import ErrorInfo, JobRecord, Payload


def read_envelope(data: bytes | None) -> dict[str, Any]:
    """Return an envelope's fields, with `args` and `kwargs` in place of its body."""
    from taskmq.errors import ProtocolError
    from taskmq.protocol.envelope import decode_envelope

    if not data:
        return {}
    try:
        envelope = decode_envelope(data)
    except ProtocolError as error:
        return {"undecodable": str(error), "bytes": len(data), "raw": _hex(data)}
    known = {
        name: value
        for name, value in msgspec.structs.asdict(envelope).items()
        if value is not None and name not in {"body", "v"}
    }
    return {**known, **_call(envelope.content_type, envelope.body)}


def read_payload(payload: Payload | None) -> Any:
    """Return a result's value, or its bytes as text when they can't be read."""
    return None if payload is None else read_value(payload.content_type, payload.data)


def read_meta(meta: bytes | None) -> Any:
    """Return a job's meta, {} when it has none."""
    return read_value("application/msgpack", meta) if meta else {}


def read_value(content_type: str, data: bytes) -> Any:
    """Decode bytes as their content type says; what can't be read is told in hexadecimal."""
    from taskmq.errors import TaskmqError
    from taskmq.protocol.codec import CodecSet
    from taskmq.transport.types import Payload

    try:
        return CodecSet().decode_value(Payload(content_type, data))
    except (TaskmqError, ValueError, RecursionError):
        return {"content_type": content_type, "bytes": len(data), "raw": _hex(data)}


def record_document(record: JobRecord) -> dict[str, Any]:
    """Return everything about a job as one document; `call` only when its envelope is at hand."""
    plain = msgspec.structs.asdict(record)
    plain["error"] = error_document(record.error)
    plain["result"] = read_payload(record.result)
    plain["meta"] = read_meta(record.meta)
    if record.envelope is not None:
        plain["call"] = read_envelope(record.envelope)
    plain["successors"] = [edge.to for edge in record.successors]
    for name in ("envelope", "receipt"):
        # The receipt is the holder's right to settle: it is not for show.
        del plain[name]
    return plain


def error_document(error: ErrorInfo | None) -> dict[str, str] | None:
    """Return an error as a document with all its fields."""
    return None if error is None else msgspec.structs.asdict(error)


def error_text(error: ErrorInfo | None) -> str:
    """Return an error as "Type: message"; our own types without their module."""
    if error is None:
        return ""
    kind = error.type.removeprefix("taskmq.errors.")
    return f"{kind or error.reason}: {error.message}"


def _call(content_type: str, body: bytes) -> dict[str, Any]:
    from taskmq.errors import TaskmqError
    from taskmq.protocol.codec import CodecSet

    try:
        args, kwargs = CodecSet().decode_call(body, content_type)
    except (TaskmqError, ValueError, RecursionError):
        return {"body": read_value(content_type, body)}
    return {"args": args, "kwargs": kwargs}


def _hex(data: bytes) -> str:
    return data[:256].hex() + ("…" if len(data) > 256 else "")
