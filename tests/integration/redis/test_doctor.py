"""What `taskmq doctor` finds about a Redis server, and that the documented rights are enough."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.redis_servers import RedisServer, redis_server
from support.redis_services import RedisWithoutEval
from support.waiting import wait_until
from taskmq import App, Config, JobState
from taskmq.errors import ConfigError, TransportError
from taskmq.testing import worker_for
from taskmq.transport.types import Finding
from taskmq_redis import RedisTransport
from taskmq_redis.settings import _OPTIONS, _SENTINEL
from taskmq_worker import Worker

PAGE = (Path(__file__).parents[3] / "docs/how-to/redis.md").read_text(encoding="utf-8")
RIGHTS = re.findall(r"\+[@\w]+", PAGE[PAGE.index("ACL SETUSER") : PAGE.index("With another")])
"""The rule as it is documented."""
WITHOUT_EVAL = [
    *(word for word in RIGHTS if "eval" not in word),
    *"+@transaction +type +pttl".split(),
]


def test_the_documented_rule_grants_nothing_that_harms_others() -> None:
    assert {"+eval", "+evalsha", "+@hash"} <= set(RIGHTS)
    dangerous = ("all", "keys", "flush", "config", "script", "admin", "dangerous")
    assert not [word for word in RIGHTS if any(bad in word for bad in dangerous)]
    assert " ".join(WITHOUT_EVAL[-3:]) in PAGE


def test_every_option_is_documented() -> None:
    explained = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", PAGE, re.M))))
    assert {*_OPTIONS, *_SENTINEL} - explained == set()


def findings(url: str) -> dict[str, Finding]:
    transport = RedisTransport.from_url(url, timeout=2)
    found = {each.subject: each for each in transport.diagnose()}
    transport.close()
    return found


def as_user(server: RedisServer, name: str, *rules: str) -> str:
    server.ask("ACL", "SETUSER", name, "reset", "on", ">pw", "resetchannels", "-@all", *rules)
    return server.url.replace("//", f"//{name}:pw@")


def test_a_good_server_has_no_errors(shared: RedisServer) -> None:
    found = findings(shared.url)
    assert {each.level for each in found.values()} == {"ok", "warning"}
    assert "Redis 7" in found["server"].message or "answers" in found["server"].message
    assert found["rights"].level == "ok"
    assert found["lua"].message == "scripts run in the server"
    # It keeps nothing on disk.
    assert "restart" in found["persistence"].message
    assert "appendonly" in found["persistence"].advice


def test_looking_leaves_nothing_behind(server: RedisServer) -> None:
    findings(server.url)
    assert server.ask("DBSIZE") == 0


@pytest.mark.parametrize(
    ("name", "rules", "mode"), [("small", RIGHTS, "server"), ("less", WITHOUT_EVAL, "client")]
)
def test_the_documented_rights_are_enough_for_everything(
    shared: RedisServer, name: str, rules: list[str], mode: str
) -> None:
    url = as_user(shared, name, f"~{name}:*", *rules) + f"?prefix={name}:"
    assert findings(url)["rights"].level == "ok"
    app = App(Config(transport=url, result=url, result_ttl=60, events="null", concurrency=2))

    @app.task(concurrency_key="one")
    def add(a: int, b: int) -> int:
        return a + b

    handles = [add.delay(number, 1) for number in range(20)]
    with Worker(app) as worker:
        worker.run_until_idle(timeout=20)
        worker.health()
    assert [handle.get(timeout=5) for handle in handles] == list(range(1, 21))
    revoked = add.apply_async((1, 2), delay=60)
    assert revoked.revoke()
    assert revoked.state is JobState.REVOKED
    assert app.transport.list_jobs(limit=5).jobs
    assert app.transport.stats() == []
    assert app.transport.describe()["lua"] == mode
    app.close()


def test_each_right_that_is_missing_is_named(shared: RedisServer) -> None:
    rules = [*RIGHTS, "-zadd", "-blpop", "-hincrby"]
    found = findings(as_user(shared, "lacking", "~taskmq:*", *rules))
    assert found["rights"].level == "error"
    for name in ("zadd", "blpop", "hincrby"):
        assert name in found["rights"].message
        assert f"+{name}" in found["rights"].advice
    assert "hset" not in found["rights"].message


def test_keys_that_may_not_be_used_are_named(shared: RedisServer) -> None:
    found = findings(as_user(shared, "elsewhere", "~other:*", *RIGHTS))
    assert found["rights"].level == "error"
    assert "~taskmq:*" in found["rights"].advice


def test_a_missing_right_ends_a_call_in_one_clear_line(shared: RedisServer) -> None:
    transport = RedisTransport.from_url(as_user(shared, "none", "~*", "+ping", "+eval"), timeout=2)
    with pytest.raises(TransportError, match="lacks a right.*taskmq doctor") as caught:
        transport.acquire("lease", "me", 10)
    assert "pw" not in str(caught.value).replace("ping", "")
    transport.close()


@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_wrong_password_is_told_at_once_and_not_shown(password: str) -> None:
    with redis_server({"requirepass": "right"}, login=("default", "right")) as server:
        url = f"redis://:{password}@127.0.0.1:{server.port}/0"
        transport = RedisTransport.from_url(url, timeout=30)
        with pytest.raises(TransportError, match="refuses the login") as caught:
            transport.ping()
        assert "wrong@" not in str(caught.value)
        transport.close()


def test_without_eval_the_client_runs_the_scripts_unless_told_not_to() -> None:
    with redis_server(RedisWithoutEval.settings) as server:
        found = findings(server.url)
        assert found["lua"].level == "warning"
        assert "+eval" in found["lua"].advice
        assert found["rights"].level == "ok"
        strict = RedisTransport.from_url(f"{server.url}?lua=on", timeout=2)
        with pytest.raises(ConfigError, match="lua=on.*forbids EVAL"):
            strict.ping()
        strict.close()


@pytest.mark.parametrize(
    ("policy", "level"),
    [("allkeys-lru", "error"), ("volatile-ttl", "warning"), ("noeviction", "ok")],
)
def test_a_policy_that_drops_keys_is_warned_of(policy: str, level: str) -> None:
    with redis_server({"maxmemory": "64mb", "maxmemory-policy": policy}) as server:
        found = findings(server.url)
    assert found["eviction"].level == level
    assert policy in found["eviction"].message


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "noeviction"])
def test_a_worker_says_at_its_start_that_the_server_drops_keys(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records if "eviction" in each.getMessage()]

    with redis_server({"maxmemory": "64mb", "maxmemory-policy": policy}) as server:
        app = App(Config(transport=server.url, events="null"))
        done = app.task(name="done")(lambda: 1)
        with worker_for(app):
            if policy == "noeviction":
                # The first look of maintenance is within a second; what it says of others comes before.
                wait_until(lambda: "cmdstat_info" in server.ask("INFO", "commandstats"))
                assert done.delay().get(timeout=10) == 1
            else:
                wait_until(told, what="the warning")
                assert policy in told()[0]
                assert "set maxmemory-policy noeviction" in told()[0]
        app.close()
    assert len(told()) == (policy != "noeviction")


def test_what_the_server_keeps_on_disk_is_told() -> None:
    with redis_server({"appendonly": "yes"}) as server:
        assert findings(server.url)["persistence"].level == "ok"
    with redis_server({"save": "3600 1"}) as server:
        found = findings(server.url)["persistence"]
        assert found.level == "warning"
        assert "snapshots" in found.message


def test_a_replica_is_told_apart(shared: RedisServer) -> None:
    with redis_server({"replicaof": f"127.0.0.1 {shared.port}"}) as server:
        assert "replica" in " ".join(each.message for each in findings(server.url).values())


def test_a_server_that_is_away_is_one_error() -> None:
    with redis_server() as server:
        url = server.url
    found = findings(url)
    assert [each.level for each in found.values()] == ["error"]
    assert "can't be reached" in found["server"].message
