"""Apps: declaring tasks in three ways, their policies, and what is refused."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import threading
import typing
from typing import Any

import pytest

from taskmq import (
    App,
    Config,
    ConfigError,
    QueueConfig,
    Retry,
    Task,
    TaskError,
    current_task,
)
from taskmq.errors import TaskmqWarning, TransportError
from taskmq.events import CollectingSink
from taskmq.transport.memory import MemoryTransport


@pytest.fixture
def app() -> App:
    return App(Config(transport=MemoryTransport(), events="null"))


class EmailTask(Task):
    queue = "email"
    retry_policy = Retry(max_attempts=5)

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.client = object()

    def run(self, to: str, subject: str = "hi") -> str:
        return f"{to}:{subject}"


def test_a_class_is_registered_once_in_a_process(app: App) -> None:
    email = app.register(EmailTask)
    assert app.register(EmailTask) is email is app.tasks[f"{__name__}.EmailTask"]
    assert email.policy.queue == "email"
    assert email.policy.max_attempts == 5


def test_a_function_is_named_after_its_module(app: App) -> None:
    @app.task
    def send_email() -> None:
        """Send it."""

    assert send_email.name == f"{__name__}.send_email"
    assert app.tasks[send_email.name] is send_email


def test_a_decorated_function_keeps_what_wraps_keeps(app: App) -> None:
    def send_email(to: str, *, subject: str = "hi") -> int:
        """Send it."""
        return 1

    task = app.task(queue="q")(send_email)
    assert (task.__doc__, task.__name__) == ("Send it.", "send_email")  # type: ignore[attr-defined]
    assert inspect.signature(task) == inspect.signature(send_email)
    assert typing.get_type_hints(task)["return"] is int


def test_a_task_of_main_is_named_after_its_file(tmp_path: Any) -> None:
    script = tmp_path / "jobs.py"
    script.write_text(
        "from taskmq import App\napp = App()\n@app.task\ndef work(): ...\nprint(work.name)\n"
    )
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=30
    )
    assert found.stdout.strip() == "jobs.work"


def test_an_instance_s_policy_set_in_init_counts(app: App) -> None:
    class Late(Task):
        def __init__(self, app: App) -> None:
            super().__init__(app)
            self.queue = "late"

        def run(self) -> None: ...

    assert app.register(Late).policy.queue == "late"


def test_a_base_gives_policy_and_the_decorator_overrides_it(app: App) -> None:
    class Base(Task):
        queue = "base"
        priority = 3

    @app.task(base=Base, bind=True, priority=7)
    def work(self: Base) -> str:
        return self.name

    assert (work.policy.queue, work.policy.priority) == ("base", 7)
    assert isinstance(work, Base)
    assert work() == work.name


def test_named_retry_policies_come_from_the_configuration() -> None:
    app = App(Config(retries={"slow": Retry(max_attempts=9)}))

    @app.task(retry="slow")
    def work() -> None: ...

    @app.task(retry="default")
    def other() -> None: ...

    assert work.policy.max_attempts == 9
    assert other.policy.max_attempts == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 10}, "priority"),
        ({"priority": True}, "priority"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 5, "hard_timeout": 1}, "hard_timeout"),
        ({"hard_timeout": float("nan")}, "hard_timeout"),
        ({"rate_limit": "100"}, "100/m"),
        ({"rate_limit": "0/s"}, "rate_limit"),
        ({"rate_limit": "5/d"}, "rate_limit"),
        ({"rate_scope": "cluster"}, "needs a rate_limit"),
        ({"rate_scope": "galaxy"}, "rate_scope"),
        ({"retry": "nope"}, "Config.retries"),
        ({"ack": "sometimes"}, "on_completion"),
        ({"max_deliveries": 0}, "max_deliveries"),
        ({"completion": "outside"}, "completion"),
        ({"completion_timeout": 5}, "completion='external'"),
        ({"queue": "a\x00b"}, "queue"),
        ({"name": "\ud800"}, "task name"),
        ({"expires": 0}, "expires"),
        ({"concurrency_limit": 0}, "concurrency_limit"),
        ({"store_result": 1}, "store_result"),
        ({"lease": 0}, "lease"),
        ({"prioritty": 1}, "priority"),
        ({"base": int}, "subclass of Task"),
        ({"bind": "yes"}, "bind"),
        ({"on_failure": 3}, "on_failure"),
    ],
)
def test_a_wrong_policy_is_refused_when_declared(
    app: App, options: dict[str, Any], message: str
) -> None:
    def work() -> None: ...

    declare: Any = app.task
    with pytest.raises(ConfigError, match=message):
        declare(**options)(work)
    assert app.tasks == {}


def test_two_tasks_can_t_share_a_name(app: App) -> None:
    app.task(name="t")(lambda: None)
    with pytest.raises(ConfigError, match="two tasks"):
        app.task(name="t")(lambda: None)


def test_a_class_without_run_is_refused(app: App) -> None:
    class Empty(Task):
        pass

    class Wrong(Task):
        run = 3  # type: ignore[assignment]

    for cls in (Empty, Wrong):
        with pytest.raises(ConfigError, match="run"):
            app.register(cls)
    with pytest.raises(ConfigError, match="subclass of Task"):
        app.register(int)  # type: ignore[type-var]


def test_what_is_no_function_can_t_be_decorated(app: App) -> None:
    with pytest.raises(ConfigError, match=r"app\.register"):
        app.task(EmailTask)
    with pytest.raises(ConfigError, match="functions"):
        app.task(3)  # type: ignore[call-overload]


def test_priority_is_resolved_from_the_call_outwards() -> None:
    config = Config(default_priority=1, queues={"q": QueueConfig(priority=2)}, events="null")
    app = App(config)
    plain = app.task(name="plain")(lambda: None)
    queued = app.task(name="queued", queue="q")(lambda: None)
    own = app.task(name="own", queue="q", priority=3)(lambda: None)
    handles = [plain.delay(), queued.delay(), own.delay(), own.apply_async(priority=9)]
    records = app.transport.get_jobs([handle.id for handle in handles])
    assert [record.priority for record in records if record] == [1, 2, 3, 9]
    app.close()


def test_queue_shares_have_the_configured_weights() -> None:
    app = App(Config(queues={"a": QueueConfig(weight=3)}))
    app.task(queue="b")(lambda: None)
    assert [(s.name, s.weight) for s in app.queue_shares()] == [("a", 3), ("b", 1), ("default", 1)]
    assert [s.name for s in app.queue_shares(["x", "a", "x"])] == ["x", "a"]
    with pytest.raises(ConfigError, match="list of names"):
        app.queue_shares("a")


def test_a_plain_call_runs_here_and_now(app: App) -> None:
    @app.task(bind=True)
    def inner(self: Task, n: int) -> tuple[str, int]:
        self.request.update_meta(n=n)
        return self.request.id, n

    @app.task
    def outer() -> tuple[str, int]:
        return inner(2)

    assert inner(1) == ("local", 1)
    assert outer() == ("local", 2)
    with pytest.raises(TaskError):
        _ = inner.request
    with pytest.raises(TaskError, match="no task runs here"):
        current_task()


def test_importing_tasks_opens_no_connection() -> None:
    app = App(Config(transport="nowhere://host/1"))
    app.task(name="t")(lambda: None)
    with pytest.raises(ConfigError, match="nowhere"):
        _ = app.transport


def test_the_transport_is_opened_once_by_many_threads() -> None:
    app = App(Config())
    found: list[Any] = []
    barrier = threading.Barrier(8)

    def look() -> None:
        barrier.wait(10)
        found.append(app.transport)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(set(map(id, found))) == 1


def test_sinks_hear_of_submitted_jobs(app: App) -> None:
    sink = CollectingSink()
    app.add_sink(sink)
    handle = app.task(name="t")(lambda: None).delay()
    (event,) = sink.of("task.submitted")
    assert (event.job, event.task, event.queue) == (handle.id, "t", "default")


def test_stdout_is_silent_in_a_producer(capsys: pytest.CaptureFixture[str]) -> None:
    with App(Config(transport=MemoryTransport())) as app:
        app.task(name="t")(lambda: None).delay()
        heard = [app.events.enabled]
        for _ in range(2):
            app.report_as_worker()
            heard.append(app.events.enabled)
    assert heard == [False, True, True]
    assert capsys.readouterr().out == ""


def test_load_imports_the_included_modules_and_shows_their_errors(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "included_ok.py").write_text("LOADED = True\n")
    (tmp_path / "included_bad.py").write_text("import no_such_module_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    App(Config(include=("included_ok",))).load()
    assert sys.modules["included_ok"].LOADED
    app = App(Config(include=("included_bad",)))
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module_here"):
            app.load()


def test_a_taught_type_travels(app: App) -> None:
    class Money:
        def __init__(self, cents: int) -> None:
            self.cents = cents

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Money) and other.cents == self.cents

        def __hash__(self) -> int:
            return self.cents

    app.register_type(Money, encode=lambda money: money.cents, decode=Money)

    def pay(price: Any) -> None: ...

    pay.__annotations__["price"] = Money
    assert app.task(pay).delay(Money(5)).id


def test_close_may_be_called_twice_and_the_app_used_again() -> None:
    app = App(Config(events="null"))
    task = app.task(name="t")(lambda: None)
    task.delay()
    app.close()
    app.close()
    assert task.delay().id
    app.close()


def test_only_a_config_configures() -> None:
    with pytest.raises(ConfigError, match=r"App\(Config"):
        App("memory://")  # type: ignore[arg-type]


def test_a_new_configuration_holds_for_what_follows(app: App) -> None:
    task = app.task(name="t")(lambda: None)
    app.config = app.config.replace(default_queue="other", max_message_bytes=2048)
    assert task.delay().info.queue == "other"
    assert app.send("elsewhere").info.queue == "other"
    with pytest.raises(ConfigError, match=r"App\(Config"):
        app.config = 3  # type: ignore[assignment]


@pytest.mark.parametrize("token", [None, 5, b"tmq1.x", "", "tmq1.", "tmq1.\x00.\ud800"])
def test_what_is_no_completion_token_is_refused_as_such(token: Any) -> None:
    with pytest.raises(TransportError, match="completion"):
        App(Config(events="null")).complete(token, 1)


@pytest.mark.parametrize(
    ("hook", "function", "takes"),
    [
        ("before_start", lambda: None, "(ctx)"),
        ("on_success", lambda ctx: None, "(ctx, result, runtime)"),
        ("on_retry", lambda ctx, exc: None, "(ctx, exc, delay)"),
        ("on_failure", lambda ctx, exc, more: None, "(ctx, exc)"),
        ("after_return", lambda ctx, *, state: None, "(ctx, state, result, exc)"),
    ],
)
def test_a_hook_that_takes_other_arguments_is_refused_at_once(
    hook: str, function: Any, takes: str, app: App
) -> None:
    def work() -> None: ...

    declared: dict[str, Any] = {hook: function}
    with pytest.raises(ConfigError, match=rf"{hook} of task 't' is called with {re.escape(takes)}"):
        app.task(name="t", **declared)(work)  # type: ignore[no-untyped-call]


def test_hooks_may_take_anything_or_be_built_in(app: App) -> None:
    app.task(name="t", on_success=lambda *all_of_it: None, on_failure=dict.fromkeys)(lambda: None)


def test_a_hook_method_that_takes_other_arguments_is_refused_at_once(app: App) -> None:
    class Wrong(Task):
        def run(self) -> None: ...

        def on_failure(self, ctx: Any) -> None: ...  # type: ignore[override]

    with pytest.raises(ConfigError, match="on_failure of task"):
        app.register(Wrong)


def test_a_misspelt_hook_is_told(app: App) -> None:
    with pytest.raises(ConfigError, match="no 'on_sucess'; did you mean 'on_success'"):
        app.task(on_sucess=print)(lambda: None)  # type: ignore[call-overload]

    class Slip(Task):
        def run(self) -> None: ...

        def on_sucess(self, ctx: Any, result: Any, runtime: float) -> None: ...

    class Field(Task):
        retry_polcy = None

        def run(self) -> None: ...

    with pytest.warns(TaskmqWarning, match="Slip.on_sucess .* did you mean 'on_success'"):
        app.register(Slip)
    with pytest.warns(TaskmqWarning, match="did you mean 'retry_policy'"):
        app.register(Field)


def test_methods_of_its_own_are_no_slip(app: App) -> None:
    class Own(Task):
        clients = 3

        def run(self) -> None: ...

        def on_error(self) -> None: ...

    app.register(Own)


def test_a_bound_task_without_first_parameter_is_told_how_to_write_it(app: App) -> None:
    def work() -> None: ...

    with pytest.raises(ConfigError, match=r"work\(\).* needs a first parameter.*\(self, …\)"):
        app.task(bind=True, name="t")(work)  # type: ignore[arg-type]
