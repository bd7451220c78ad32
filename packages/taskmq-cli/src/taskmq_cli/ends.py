"""Waiting for the end of what was submitted, and showing its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from taskmq_cli import output
from taskmq_cli.errors import Failure, note

if TYPE_CHECKING:
    from taskmq.handle import TaskHandle
    from taskmq.workflow import WorkflowHandle
    from taskmq_cli.session import Session

TIMEOUT_ALONE = "--timeout says how long --wait may wait: give --wait too"


class Kind(NamedTuple):
    """What is waited for, and the commands that show and cancel it."""

    name: str
    show: str
    cancel: str


JOB = Kind("job", "taskmq jobs show", "taskmq jobs revoke")
RUN = Kind("run", "taskmq workflow status", "taskmq workflow cancel")


def wait_for(
    session: Session,
    handle: TaskHandle[Any] | WorkflowHandle[Any],
    kind: Kind,
    timeout: float | None,
) -> None:
    """Wait, and show the result as JSON.

    Raises:
        Failure: It ended otherwise, or not within the timeout.
    """
    from taskmq.errors import RemoteError, ResultTimeout

    note(f"{kind.name} {handle.id}")
    try:
        result = handle.get(timeout=timeout)
    except ResultTimeout:
        raise Failure(
            f"{kind.name} {handle.id} has not ended within {timeout:g} s; it goes on: "
            f"look at it with `{kind.show} {handle.id}`"
        ) from None
    except RemoteError as error:
        if session.json:
            output.show_json(_failed(handle.id, error))
        text = str(error) if session.debug else str(error).partition("\n")[0]
        raise Failure(text) from None
    except KeyboardInterrupt:
        note(f"{kind.name} {handle.id} goes on; `{kind.cancel} {handle.id}` cancels it")
        raise
    if session.json:
        output.show_json({"id": handle.id, "state": "SUCCEEDED", "result": result})
    else:
        output.show_json(result)


def _failed(job: str, error: Any) -> dict[str, Any]:
    return {
        "id": job,
        "state": error.state,
        "error": {
            "type": error.type,
            "message": error.message,
            "reason": error.reason,
            "traceback": error.traceback,
        },
    }
