"""Apps that run their jobs at the call."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from taskmq.app import App
from taskmq.config import Config
from taskmq.errors import TaskmqWarning

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def eager_app(app: App | None = None, **settings: Any) -> Generator[App]:
    """An app whose jobs run at the call, through the code that a worker runs, without a network.

    ```python
    def test_signup():
        with eager_app(myapp.tasks.app):
            assert welcome.delay("a@b.com").get() == "sent"
    ```

    Jobs that have not ended at the end of the block are named in a warning.

    Args:
        app: An app whose own tasks are to run so inside the block; None makes a new one.
        settings: Fields of `Config` to change.
    """
    if app is None:
        fields: dict[str, Any] = {**settings, "eager": True}
        app = App(Config(**fields))
        restore = None
    else:
        app.close()
        restore = app.config
        app.config = restore.replace(**{**settings, "eager": True})
    try:
        yield app
        left = app.eager.unfinished()
        if left:
            warnings.warn(
                f"{len(left)} jobs have not ended: {', '.join(left[:5])}",
                TaskmqWarning,
                stacklevel=3,
            )
    finally:
        app.close()
        if restore is not None:
            app.config = restore
