"""The names that users import are promises: one taken away or added by accident fails here."""

from __future__ import annotations

import importlib
import inspect

import pytest

PROMISED = {
    "taskmq": """
        App Config ConfigError Envelope JobState LeaseLost MessageTooLarge Middleware Priority QueueConfig
        Reject RemoteError ResultTimeout Retry RetryRequest Task TaskContext TaskError TaskHandle
        TransportError TransportUnavailable __version__ current_task
    """,
    "taskmq.events": "CollectingSink EventSink",
    "taskmq.plugins": """
        load_plugins register_codec register_command register_pool register_result register_sink
        register_transport
    """,
    "taskmq.testing": """
        FakeClock conformance_params eager_app run_until_idle transport_conformance worker_for
    """,
    "taskmq.transport": "Transport",
    "taskmq_worker": "Worker",
}


@pytest.mark.parametrize("module", sorted(PROMISED))
def test_promised_names_are_there(module: str) -> None:
    imported = importlib.import_module(module)
    missing = [name for name in PROMISED[module].split() if not hasattr(imported, name)]
    assert missing == []


def test_taskmq_exports_exactly_what_is_promised() -> None:
    import taskmq

    assert list(taskmq.__all__) == sorted(taskmq.__all__)
    assert set(taskmq.__all__) == set(PROMISED["taskmq"].split())


@pytest.mark.parametrize("module", sorted(PROMISED))
def test_every_export_has_a_docstring(module: str) -> None:
    imported = importlib.import_module(module)
    bare = [
        name
        for name in getattr(imported, "__all__", PROMISED[module].split())
        if (inspect.isclass(value := getattr(imported, name)) or inspect.isfunction(value))
        and not inspect.getdoc(value)
    ]
    assert bare == []


def test_errors_are_one_tree() -> None:
    from taskmq import errors

    classes = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and value.__module__ == "taskmq.errors"
    ]
    assert len(classes) > 10
    assert all(issubclass(c, (errors.TaskmqError, errors.TaskmqWarning)) for c in classes)
