"""A cluster whose masters fail and whose slots move: jobs go on, and no key is ever out of its slot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from support.backends import need
from support.load import Load
from support.redis_servers import RedisServer, redis_folder
from support.redis_services import ClusterSetup
from support.waiting import wait_until
from taskmq import App, Config, ConfigError, JobState
from taskmq.errors import TransportError, TransportUnavailable
from taskmq_redis import RedisTransport

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def cluster() -> Iterator[ClusterSetup]:
    need("redis-cluster")
    with redis_folder() as folder:
        setup = ClusterSetup(folder, timeout=700)
        try:
            setup.start([])
            yield setup
        finally:
            for node in setup.nodes:
                node.kill()


def slot_of(prefix: str) -> int:
    slot: int = key_slot(b"{" + prefix.encode() + b"}")
    return slot


def owner_of(cluster: ClusterSetup, prefix: str) -> RedisServer:
    slot = slot_of(prefix)
    return cluster.masters[min(slot * 3 // 16384, 2)]


def keys_of(node: RedisServer, slot: int) -> list[str]:
    found: list[str] = node.ask("CLUSTER", "GETKEYSINSLOT", slot, 100_000)
    return found


def test_jobs_go_on_after_the_master_of_their_slot_is_killed(cluster: ClusterSetup) -> None:
    url = f"{cluster.url}&prefix=jobs:"
    load = Load(url, timeout=20, lease=3.0, heartbeat_interval=0.5)
    with load.app, load.running(lossless=False):
        load.wait_for_more()
        owner_of(cluster, "jobs:").kill()
        before = len(load.accepted)
        # The replica takes over; what was acknowledged and not copied yet may be gone, and only that.
        wait_until(lambda: len(load.accepted) > before + 100, 60)
        later = load.accepted[before + 20 : before + 100]
        wait_until(lambda: all(handle.state is JobState.SUCCEEDED for handle in later), 60)


def test_a_slot_that_moves_to_another_node_is_followed(cluster: ClusterSetup) -> None:
    url = f"{cluster.url}&prefix=moving:"
    slot, source = slot_of("moving:"), owner_of(cluster, "moving:")
    target = next(node for node in cluster.masters if node is not source)
    load = Load(url, timeout=20, lease=5.0, heartbeat_interval=0.5)
    with load.app, load.running():
        load.wait_for_more()
        source_id, target_id = source.ask("CLUSTER", "MYID"), target.ask("CLUSTER", "MYID")
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        # Half of the keys are elsewhere for a while: calls wait, and none does half of its work.
        moved = 0
        while keys := keys_of(source, slot):
            words: list[Any] = [
                "MIGRATE",
                "127.0.0.1",
                target.port,
                "",
                0,
                5000,
                "KEYS",
                *keys[:20],
            ]
            source.ask(*words)
            moved += 20
            time.sleep(0.01)  # it takes a while on purpose: that is when calls come
        for node in cluster.masters:
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        assert moved > 0
        before = len(load.accepted)
        wait_until(lambda: len(load.accepted) > before + 100, 60)
    assert set(load.ran.values()) == {1}
    assert keys_of(source, slot) == []


def test_everything_of_a_prefix_lies_in_one_slot_whatever_the_queues(
    cluster: ClusterSetup, tmp_path: Path
) -> None:
    with App(Config(transport=f"{cluster.url}&prefix=one:", events="null")) as app:

        @app.task(name="t", concurrency_key="k:{x}")
        def t(x: str) -> None: ...

        for queue in ("a", "b", "ü {x} %"):
            t.apply_async(("x",), queue=queue, delay=60)
            t.apply_async(("y",), queue=queue, key=f"key {queue}")
        counts = [
            node.ask("CLUSTER", "COUNTKEYSINSLOT", slot_of("one:")) for node in cluster.masters
        ]
        sizes = [node.ask("DBSIZE") for node in cluster.masters]
    assert sum(counts) > 10
    assert sorted(sizes) == sorted(counts)


def test_a_node_of_a_cluster_that_was_not_called_one_is_told_at_once(cluster: ClusterSetup) -> None:
    # Without ?cluster=1 the prefix has no braces.
    owner = cluster.masters[min(key_slot(b"alone:") * 3 // 16384, 2)]
    other = next(node for node in cluster.masters if node is not owner)
    transport = RedisTransport.from_url(f"{other.url}?prefix=alone:", timeout=20)
    start = time.monotonic()
    with pytest.raises(TransportError, match=r"add \?cluster=1") as caught:
        transport.get_jobs(["a"])
    assert not isinstance(caught.value, TransportUnavailable)
    assert time.monotonic() - start < 10
    transport.close()


def test_a_server_that_is_no_cluster_is_told_apart() -> None:
    need("redis")
    with redis_folder() as folder:
        server = RedisServer(folder / "single")
        server.start()
        try:
            transport = RedisTransport.from_url(f"{server.url}?cluster=1", timeout=2)
            with pytest.raises(ConfigError, match="no node of a Redis Cluster"):
                transport.ping()
        finally:
            server.kill()
