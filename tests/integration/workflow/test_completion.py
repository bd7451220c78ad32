"""Steps that the outside world finishes."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from support.flows import Flows
from taskmq import RemoteError, Retry, TransportError, current_task
from taskmq.completion import callback_url, wsgi_app
from taskmq.workflow import WorkflowBuilder


class Outside:
    """A workflow with a step that waits for the outside, and the tokens it gave away."""

    def __init__(self, flows: Flows, **policy: Any) -> None:
        self.tokens: list[str] = []
        self.flows = flows
        timeout = policy.pop("timeout", None)

        def begin(url: str) -> Any:
            self.tokens.append(current_task().completion_token)
            return current_task().park(timeout=timeout)

        declare: Any = flows.app.task(name="start", **policy)
        start: Any = declare(begin)

        @flows.app.workflow("w")
        def _w(wf: WorkflowBuilder) -> Any:
            started = wf.step("start", start, args=("u",))
            return wf.step("after", flows.give, deps={"value": started})

        self.run = flows.app.submit_workflow("w")
        flows.drain()

    def state(self) -> str:
        return self.flows.states(self.run)["start"]


def test_a_parked_step_waits_and_its_result_goes_on(flows: Flows) -> None:
    outside = Outside(flows)
    assert outside.state() == "WAITING"
    assert flows.app.complete(outside.tokens[0], {"done": True}).status == "ok"
    assert flows.app.complete(outside.tokens[0], {"done": True}).status == "already"
    with pytest.raises(TransportError, match="refused"):
        flows.app.complete(outside.tokens[0], {"done": False})
    flows.drain()
    assert outside.run.get(timeout=5) == {"done": True}
    assert flows.calls["after"] == 1


def test_completion_external_parks_by_itself(flows: Flows) -> None:
    tokens: list[str] = []

    @flows.app.task(name="ext", completion="external", completion_timeout=60)
    def ext() -> None:
        tokens.append(current_task().completion_token)

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.join("j", flows.collect, [wf.step("ext", ext)])

    run = flows.run("w")
    flows.app.complete(tokens[0], 5)
    flows.drain()
    assert run.get(timeout=5) == [5]


def test_a_completion_before_the_park_is_not_lost(flows: Flows) -> None:
    statuses: list[str] = []

    @flows.app.task(name="early")
    def early() -> Any:
        context = current_task()
        statuses.append(flows.app.complete(context.completion_token, "early").status)
        return context.park(timeout=60)

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.join("j", flows.collect, [wf.step("early", early)])

    assert flows.run("w").get(timeout=5) == ["early"]
    assert statuses == ["kept"]


def test_a_failure_from_outside_follows_the_failure_mode(flows: Flows) -> None:
    outside = Outside(flows, retry=Retry(max_attempts=3, base=0.0))
    flows.app.fail(outside.tokens[0], "no space")
    flows.drain()
    with pytest.raises(RemoteError, match="step 'start' ended FAILED: no space"):
        outside.run.get(timeout=5)
    assert len(outside.tokens) == 1


def test_a_retryable_failure_tries_again_and_the_old_token_is_refused(flows: Flows) -> None:
    outside = Outside(flows, retry=Retry(max_attempts=3, base=0.0))
    flows.app.fail(outside.tokens[0], "busy", retryable=True)
    flows.drain()
    assert len(outside.tokens) == 2
    with pytest.raises(TransportError, match="refused"):
        flows.app.complete(outside.tokens[0], "late")
    flows.app.complete(outside.tokens[1], "second")
    flows.drain()
    assert outside.run.get(timeout=5) == "second"


def test_nobody_completes_it_in_time(flows: Flows) -> None:
    outside = Outside(flows, timeout=0.2, retry=Retry(max_attempts=2, base=0.0))
    from support.waiting import wait_until
    from taskmq.testing import worker_for

    with worker_for(flows.app) as worker:
        worker.start()
        assert wait_until(lambda: outside.run.wait(0.1) or None, timeout=20)
    assert len(outside.tokens) == 2
    with pytest.raises(RemoteError, match="step 'start' ended FAILED"):
        outside.run.get(timeout=5)


def post(
    flows: Flows, path: str, body: Any = None, *, raw: bytes | None = None, method: str = "POST"
) -> tuple[int, dict[str, Any]]:
    """What the WSGI app answers."""
    from urllib.parse import unquote_to_bytes

    data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
    told: list[str] = []
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "CONTENT_LENGTH": str(len(data)),
        "wsgi.input": io.BytesIO(data),
    }
    serve: Any = wsgi_app(flows.app)
    chunks = serve(environ, lambda status, headers: told.append(status))
    return int(told[0][:3]), json.loads(b"".join(chunks))


def test_over_http(flows: Flows) -> None:
    outside = Outside(flows)
    path = callback_url("", outside.tokens[0])
    assert "/" not in path[1:]
    assert post(flows, path, {"result": [1, "ü"]}) == (200, {"status": "ok"})
    assert post(flows, path, {"result": [1, "ü"]}) == (200, {"status": "already"})
    assert post(flows, path, {"error": "no"})[0] == 409
    flows.drain()
    assert outside.run.get(timeout=5) == [1, "ü"]


def test_an_error_over_http(flows: Flows) -> None:
    outside = Outside(flows)
    assert post(flows, callback_url("", outside.tokens[0]), {"error": "broken"})[0] == 200
    flows.drain()
    with pytest.raises(RemoteError, match="broken"):
        outside.run.get(timeout=5)


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (404, {"path": "/nothing"}),
        (404, {"path": "/%ff%fe"}),
        (405, {"method": "GET"}),
        (400, {"raw": b"{"}),
        (400, {"raw": b"[]"}),
        (400, {"body": {"result": 1, "error": "both"}}),
        (400, {"body": {"other": 1}}),
        (400, {"body": {"error": 5}}),
        (413, {"raw": b" " * 300_000}),
    ],
)
def test_what_is_no_completion_is_refused_over_http(
    flows: Flows, status: int, how: dict[str, Any]
) -> None:
    outside = Outside(flows)
    path = how.get("path", callback_url("", outside.tokens[0]))
    code, answer = post(flows, path, **{name: how[name] for name in how if name != "path"})
    assert code == status
    assert answer["error"]
    assert outside.state() == "WAITING"
