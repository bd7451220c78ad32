"""A fleet in one thread: random graphs on a real transport whose calls get lost or come twice.

Deliveries are settled late, their leases run out, replies are dropped after they took effect, and
workers die between two chunks of a map: whatever may happen in a fleet happens here, in an order that a
seed decides.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from support.flow_oracle import ATTEMPTS, DEFAULT, Spec
from taskmq import App, Config, Retry, current_task
from taskmq.clock import FakeClock
from taskmq.context import AttemptControl
from taskmq.errors import TransportUnavailable
from taskmq.execution import Unrunnable, prepare, run
from taskmq.states import JobState
from taskmq.transport.contract import Transport
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import QueueShare, ReapRequest, ReserveRequest
from taskmq.workflow import WorkflowBuilder, WorkflowHandle

LEASE = 10.0
_FAULTY = (
    *("enqueue", "settle", "get_jobs", "get_results", "list_jobs", "complete", "reopen"),
    "reserve",
)


class Flaky:
    """A transport whose calls now and then do not arrive, arrive twice, or whose reply is lost."""

    def __init__(self, inner: Transport, rng: random.Random) -> None:
        self._inner = inner
        self._rng = rng
        self.rate = 0.0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in _FAULTY:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._rng.random() >= self.rate:
                return method(*args, **kwargs)
            how = self._rng.choice(["lost", "reply lost", "twice"])
            if how == "lost":
                raise TransportUnavailable("the call was lost")
            answer = method(*args, **kwargs)
            if how == "reply lost":
                raise TransportUnavailable("the reply was lost")
            if name == "reserve":
                # A reserve is no call to repeat: the deliveries of the first would wait for their leases.
                return answer
            return method(*args, **kwargs)

        return call


class Boom(Exception):
    """What failing steps raise."""


class Simulation:
    """One app, one transport, any number of pretended workers."""

    def __init__(self, seed: int, *, faults: float) -> None:
        self.rng = random.Random(seed)
        self.clock = FakeClock()
        self.inner = MemoryTransport(clock=self.clock)
        self.flaky = Flaky(self.inner, self.rng)
        self.flaky.rate = faults
        transport: Any = self.flaky
        self.app = App(Config(transport=transport, events="null", max_deliveries=1_000))
        self.calls: Counter[tuple[str, int]] = Counter()
        self.started: list[str] = []
        self.early: list[str] = []
        self.specs: dict[str, Spec] = {}
        self._declare()

    def _declare(self) -> None:
        app = self.app

        @app.task(name="work", retry=Retry(max_attempts=ATTEMPTS, base=0.0, jitter=False))
        def work(values: Any = None, item: Any = None) -> Any:
            context = current_task()
            name = context.step or ""
            self._check_order(name)
            self.calls[name, context.attempt] += 1
            spec = self.specs[name.partition("[")[0]]
            fails = spec.fails
            if "[" in name:
                fails = spec.items[int(name.partition("[")[2].rstrip("]"))]
            if fails == -1 or context.attempt <= fails:
                raise Boom(name)
            if "[" in name:
                return name
            return [name, *(values or [])] if spec.flag else []

        @app.workflow("w")
        def _w(wf: WorkflowBuilder) -> None:
            for spec in self.specs.values():
                self._add(wf, spec)

    def _add(self, wf: WorkflowBuilder, spec: Spec) -> None:
        options: dict[str, Any] = {"on_failure": spec.on_failure, "default": DEFAULT}
        if spec.kind == "gather":
            wf.gather(spec.name, spec.deps, default=DEFAULT)
        elif spec.kind == "map":
            wf.map(
                spec.name, "work", over=list(range(len(spec.items))), arg="item",
                after=spec.deps, tolerate=spec.tolerate, **options,
            )  # fmt: skip
        else:
            if spec.when:
                options["when"] = wf.when(spec.when)
            if spec.rule == "any_failed":
                wf.step(spec.name, "work", after=spec.deps, rule="any_failed", **options)
            else:
                options["rule"] = spec.rule
                wf.join(spec.name, "work", spec.deps, "values", **options)

    def _check_order(self, name: str) -> None:
        """No step starts before what its rule waits for is final."""
        spec = self.specs[name.partition("[")[0]]
        if spec.rule == "any_failed":
            return
        ids = [
            f"{self.run.id}::{each}" for each in (*spec.deps, *([spec.when] if spec.when else []))
        ]
        for record in self.inner.get_jobs(ids):
            if record is not None and not record.state.is_final:
                self.early.append(f"{name} before {record.step}")

    def submit(self, specs: list[Spec]) -> WorkflowHandle[Any]:
        """Submit until an answer comes."""
        self.specs = {spec.name: spec for spec in specs}
        self.run = WorkflowHandle[Any](self.app, "wf-simulated")
        while True:
            try:
                self.run = self.app.submit_workflow("w", run_id="wf-simulated")
            except TransportUnavailable:
                continue
            return self.run

    def work(self, steps: int = 20_000) -> None:
        """Work until the run has ended and nothing more can start."""
        for _ in range(steps):
            if not self._turn() and self._is_quiet():
                return
        raise AssertionError(f"still going on after {steps} steps: {self._alive()}")

    def _turn(self) -> bool:
        worker = f"w{self.rng.randrange(3)}"
        limit = self.rng.randint(1, 4)
        shares = (QueueShare("default"),)
        try:
            reply = self.app.transport.reserve(
                ReserveRequest(worker=worker, queues=shares, limit=limit, lease=LEASE)
            )
        except TransportUnavailable:
            self._pass_time()
            return True
        deliveries = reply.deliveries
        self.rng.shuffle(deliveries)
        for delivery in deliveries:
            self._run(worker, delivery)
        if not deliveries and reply.next_due_in is not None:
            self.clock.advance(reply.next_due_in + 0.001)
            return True
        if not deliveries:
            return self._pass_time()
        return True

    def _run(self, worker: str, delivery: Any) -> None:
        attempt = prepare(self.app, delivery, worker=worker, control=AttemptControl())
        done = attempt if isinstance(attempt, Unrunnable) else run(attempt)
        settlement = done.settlement
        fate = self.rng.random()
        if fate < self.flaky.rate / 2:
            return  # The worker died after the body: the delivery is left to its lease.
        for _ in range(50):
            try:
                self.app.transport.settle(worker, [settlement])
            except TransportUnavailable:
                continue
            if fate > 1 - self.flaky.rate:
                self.inner.settle(worker, [settlement])
            return

    def _pass_time(self) -> bool:
        """Let leases run out; whether anything came of it."""
        if not self.inner.stats() or not any(each.in_flight for each in self.inner.stats()):
            return False
        self.clock.advance(LEASE + 1)
        self.inner.reap(ReapRequest())
        return True

    def _is_quiet(self) -> bool:
        return not any(
            each.pending or each.delayed or each.in_flight for each in self.inner.stats()
        )

    def _alive(self) -> list[str]:
        page = self.inner.list_jobs(limit=1000)
        return [f"{each.id} {each.state}" for each in page.jobs if not each.state.is_final]

    def states(self) -> dict[str, str]:
        """The states of the steps, as `status` shows them."""
        self.flaky.rate = 0.0
        return {name: step.state.value for name, step in self.run.status().steps.items()}

    def value(self, name: str) -> Any:
        """The value that a step gives its dependants."""
        from taskmq.workflow.inputs import Values

        values = Values(self.app)
        default = self.app.codecs.encode_value(DEFAULT)
        return values.value(f"{self.run.id}::{name}", default)

    def run_state(self) -> JobState:
        """How the run has ended."""
        return self.run.status().state
