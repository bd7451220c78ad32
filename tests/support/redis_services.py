"""The Redis set-ups: one server in several moods, a pair behind Sentinel, and a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from support.certificates import make_certificates
from support.redis_servers import RedisProgram, RedisServer, free_cluster_port
from support.waiting import wait_until

READY = 30.0


class Redis(RedisProgram):
    """One server that keeps nothing on disk."""

    settings: dict[str, str] = {}

    def start(self, folder: Path, pids: list[int]) -> str:
        server = RedisServer(folder, self.settings)
        server.launch()
        pids.append(server.pid)
        server.wait_until_ready()
        return server.url


class RedisFull(Redis):
    """It refuses what takes memory beyond 16 MB."""

    settings = {"maxmemory": "16mb", "maxmemory-policy": "noeviction"}


class RedisWithoutEval(Redis):
    """It forbids scripts."""

    settings = {"user": "default on nopass ~* &* +@all -@scripting"}


class TlsServer(RedisServer):
    """A server that speaks TLS only; its certificates are in its folder.

    Args:
        folder: Its data and its certificates.
        settings: Its configuration.
        names: What its certificate is for.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] = {},
        *,
        names: str = "DNS:localhost,IP:127.0.0.1",
    ) -> None:
        super().__init__(folder, settings)
        make_certificates(folder, names)
        self.settings |= {
            "port": "0",
            "tls-port": str(self.port),
            "tls-cert-file": str(folder / "server.pem"),
            "tls-key-file": str(folder / "server.key"),
            "tls-ca-cert-file": str(folder / "ca.pem"),
            "tls-auth-clients": self.settings.get("tls-auth-clients", "optional"),
        }

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self.port}/0?ca={quote(str(self.folder / 'ca.pem'), safe='')}"

    def tls(self) -> dict[str, Any]:
        return {
            "ssl": True,
            "ssl_ca_certs": str(self.folder / "ca.pem"),
            "ssl_certfile": str(self.folder / "client.pem"),
            "ssl_keyfile": str(self.folder / "client.key"),
            "ssl_check_hostname": False,
        }


class RedisTls(RedisProgram):
    """A server that speaks TLS only, by a certificate of an authority of its own."""

    package = "redis-server openssl"
    programs: tuple[str, ...] = ("redis-server", "openssl")

    def start(self, folder: Path, pids: list[int]) -> str:
        server = TlsServer(folder)
        server.launch()
        pids.append(server.pid)
        server.wait_until_ready()
        return server.url


class SentinelSetup:
    """A primary, a replica and three sentinels, who ask for other credentials than the data's.

    Args:
        folder: Their data.
    """

    SERVICE = "taskmq-primary"
    DATA = ("jobs", "dätä p:w@d/")
    SENTINEL_PASSWORD = "s%ntinel #?"

    def __init__(self, folder: Path) -> None:
        name, password = self.DATA
        # Sentinel and replication log in with the same user, which may do everything here.
        access = {
            "user": f'default off\nuser {name} on ">{password}" ~* &* +@all',
            "masteruser": name,
            "masterauth": f'"{password}"',
            "repl-diskless-sync-delay": "0",
        }
        self.primary = RedisServer(folder / "primary", access, login=self.DATA)
        self.replica = RedisServer(
            folder / "replica",
            {**access, "replicaof": f"127.0.0.1 {self.primary.port}"},
            login=self.DATA,
        )
        self.sentinels = [
            _Sentinel(folder / f"sentinel{number}", self.primary.port) for number in range(3)
        ]

    @property
    def servers(self) -> list[RedisServer]:
        """All of them."""
        return [self.primary, self.replica, *self.sentinels]

    @property
    def url(self) -> str:
        """For the transport."""
        name, password = (quote(text, safe="") for text in self.DATA)
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        other = quote(self.SENTINEL_PASSWORD, safe="")
        return (
            f"redis+sentinel://{name}:{password}@{hosts}/{self.SERVICE}/0?sentinel_password={other}"
        )

    def start(self, pids: list[int]) -> None:
        """Start all, until the sentinels know each other and the replica."""
        for server in (self.primary, self.replica):
            server.launch()
            pids.append(server.pid)
        self.primary.wait_until_ready()
        self.replica.wait_until_ready()
        for sentinel in self.sentinels:
            sentinel.launch("--sentinel")
            pids.append(sentinel.pid)
        for sentinel in self.sentinels:
            sentinel.wait_until_ready()
            wait_until(partial(self._is_complete, sentinel), READY, what="the sentinels")

    def _is_complete(self, sentinel: RedisServer) -> bool:
        flat = sentinel.ask("SENTINEL", "MASTER", self.SERVICE)
        found = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        return (int(found["num-slaves"]), int(found["num-other-sentinels"])) == (1, 2) and found[
            "flags"
        ] in ("master", {"master"})

    def primary_port(self) -> int:
        """What the sentinels say."""
        answer = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.SERVICE)
        return int(answer[1])


class _Sentinel(RedisServer):
    def __init__(self, folder: Path, primary: int) -> None:
        secret = SentinelSetup.SENTINEL_PASSWORD
        super().__init__(folder, login=("default", secret))
        name, password = SentinelSetup.DATA
        service = SentinelSetup.SERVICE
        self.settings = {
            "bind": "127.0.0.1",
            "requirepass": f'"{secret}"',
            "sentinel": (
                f'sentinel-pass "{secret}"\n'
                f"sentinel monitor {service} 127.0.0.1 {primary} 2\n"
                f"sentinel auth-user {service} {name}\n"
                f'sentinel auth-pass {service} "{password}"\n'
                f"sentinel down-after-milliseconds {service} 1000\n"
                f"sentinel failover-timeout {service} 3000"
            ),
        }


class RedisSentinel(RedisProgram):
    """A primary and a replica that three sentinels watch."""

    def start(self, folder: Path, pids: list[int]) -> str:
        setup = SentinelSetup(folder)
        setup.start(pids)
        return setup.url


class ClusterSetup:
    """Three masters with a replica each.

    Args:
        folder: Their data.
        timeout: After how long a node counts as failed, milliseconds.
    """

    def __init__(self, folder: Path, timeout: int = 1500) -> None:
        self.nodes = [
            RedisServer(
                folder / f"node{number}",
                {
                    "cluster-enabled": "yes",
                    "cluster-node-timeout": str(timeout),
                    # A replica that was just cut off may take over too: there are only two copies.
                    "cluster-replica-validity-factor": "0",
                    "repl-diskless-sync-delay": "0",
                },
                port=free_cluster_port(),
            )
            for number in range(6)
        ]

    @property
    def masters(self) -> list[RedisServer]:
        """Those that own slots at the start; the replica of each is three further."""
        return self.nodes[:3]

    @property
    def url(self) -> str:
        """For the transport, with two nodes named."""
        return f"redis://127.0.0.1:{self.nodes[0].port},127.0.0.1:{self.nodes[1].port}/0?cluster=1"

    def start(self, pids: list[int]) -> None:
        """Start the nodes and join them, which is quicker by hand than by redis-cli."""
        for node in self.nodes:
            node.launch()
            pids.append(node.pid)
        for node in self.nodes:
            node.wait_until_ready()
        for number, node in enumerate(self.masters):
            first, last = 16384 * number // 3, 16384 * (number + 1) // 3 - 1
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.ask("CLUSTER", "ADDSLOTS", *range(first, last + 1))
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        ids = [node.ask("CLUSTER", "MYID") for node in self.masters]
        for number, node in enumerate(self.nodes[3:]):
            wait_until(partial(_replicate, node, ids[number]), READY, 0.02)
        wait_until(lambda: all(map(_is_ready, self.nodes)), READY, 0.02, what="the cluster")


def _replicate(node: RedisServer, master: str) -> bool:
    known = node.ask("CLUSTER", "NODES")
    if master not in str(known):
        return False
    node.ask("CLUSTER", "REPLICATE", master)
    return True


def _is_ready(node: RedisServer) -> bool:
    info = str(node.ask("CLUSTER", "INFO"))
    replication = node.ask("INFO", "replication")
    linked = replication["role"] == "master" or replication["master_link_status"] == "up"
    return "cluster_state:ok" in info and "cluster_known_nodes:6" in info and linked


class RedisCluster(RedisProgram):
    """Three masters and three replicas."""

    def start(self, folder: Path, pids: list[int]) -> str:
        setup = ClusterSetup(folder)
        setup.start(pids)
        return setup.url
