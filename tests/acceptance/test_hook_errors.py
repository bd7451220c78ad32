"""A hook that fails after the settlement is kept in the job's meta, and changes nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.backends import ALL, Backends
from taskmq import App, Config, JobState, Retry
from taskmq_worker import Worker


@pytest.mark.parametrize("scheme", ALL)
@pytest.mark.parametrize("hook", ["on_success", "on_retry", "on_failure", "after_return"])
def test_a_failing_hook_is_recorded_in_the_meta(
    scheme: str, hook: str, tmp_path: Path, backends: Backends
) -> None:
    url = backends.url(scheme, tmp_path)

    def broken(*args: Any) -> None:
        raise RuntimeError(f"{hook} is broken")

    def body() -> None:
        if hook in ("on_retry", "on_failure"):
            raise ValueError("the body fails")

    with App(Config(transport=url, events="null")) as app:
        policy = Retry(max_attempts=2, base=0.01, jitter=False)
        hooks: dict[str, Any] = {hook: broken}
        task: Any = app.task(name="job", retry=policy, **hooks)
        handle = task(body).delay()
        with Worker(app) as worker:
            worker.run_until_idle(timeout=20)
        failing = hook in ("on_retry", "on_failure")
        assert handle.state is (JobState.FAILED if failing else JobState.SUCCEEDED)
        recorded = str(handle.info.meta["hook_error"])
        assert hook in recorded
        assert "is broken" in recorded
