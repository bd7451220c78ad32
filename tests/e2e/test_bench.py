"""The benchmarks, on little, as a person would start them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.backends import need

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def bench(*words: str, timeout: float = 160) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py"), *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def figures_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)["figures"]}


LITTLE = ("--jobs", "100", "--runs", "1", "--json")


@pytest.mark.parametrize(
    ("backend", "counted"),
    [
        ("sqlite", []),
        ("redis", ["round trips", "commands"]),
        ("postgres", ["commits", "statements", "WAL"]),
    ],
)
def test_bench_prints_the_ratio_to_a_bare_client_and_what_the_server_did(
    backend: str, counted: list[str]
) -> None:
    if backend != "sqlite":
        need(backend)
    parts = ("--only", "efficiency", "--only", "throughput")
    figures = figures_of(bench("--transport", backend, *LITTLE, *parts))
    assert 0 < figures["ratio at 10"]["value"] < 10
    assert 0 < figures["ratio at 100"]["value"] < 10
    assert figures["consume"]["value"] > 0
    for name in counted:
        assert figures[f"server: {name}"]["value"] > 0


def test_bench_prints_what_workflows_cost() -> None:
    figures = figures_of(bench("--workflows", "--transport", "memory", *LITTLE))
    assert figures["calls of the transport"]["value"] == 1
    assert figures["chain of 100"]["value"] > 0
    assert figures["map of 1,000 with a join"]["value"] > 0
    assert figures["ratio, pick-up"]["value"] > 0


def test_bench_refuses_a_peer_that_is_not_on_that_backend() -> None:
    done = bench("--transport", "sqlite", "--peers", "huey,celery")
    assert done.returncode == 1
    assert "no peer celery on sqlite; there is: huey" in done.stderr


def test_bench_refuses_a_transport_that_it_does_not_know() -> None:
    done = bench("--transport", "carrier-pigeon")
    assert done.returncode == 1
    assert "say memory, sqlite, redis, postgres, or a URL" in done.stderr


def test_bench_leaves_a_redis_that_holds_keys_alone() -> None:
    need("redis")
    import redis

    from support.services import running

    with running("redis") as service:
        client: Any = redis.Redis.from_url(service.url)
        client.set("precious", "1")
        done = bench("--transport", service.url, *LITTLE)
        assert done.returncode == 1
        assert "holds keys" in done.stderr
        assert client.get("precious") == b"1"


DRIVERS = [file.stem for file in (BENCHMARKS / "peers").glob("*.py") if file.stem != "common"]


@pytest.mark.parametrize("name", sorted(DRIVERS))
def test_each_peer_has_a_driver_with_the_modes_that_are_called(name: str) -> None:
    tree = ast.parse((BENCHMARKS / "peers" / f"{name}.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (main,) = [call for call in calls if ast.unparse(call.func) == "common.main"]
    assert {"enqueue", "serve", "ask"} <= {keyword.arg for keyword in main.keywords}


@pytest.mark.soak
def test_a_peer_runs_in_an_environment_of_its_own_beside_us() -> None:
    need("redis")
    words = ("--transport", "redis", "--peers", "huey", *LITTLE, "--only", "throughput")
    done = bench(*words, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["figures"]
    consumed = {row["subject"]: row["value"] for row in rows if row["name"] == "consume"}
    assert consumed["huey"] > 0
    assert consumed["taskmq"] > 0
