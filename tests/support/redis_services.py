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
    """A server that speaks TLS only.

    Args:
        folder: Its data.
        settings: Its configuration.
        names: What its certificate is for, if it makes one.
        certificates: Where its certificates are; by default it makes some in its folder.
        port: A free one if None.
        login: The user name and the password of its administrator.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] = {},
        *,
        names: str = "DNS:localhost,IP:127.0.0.1",
        certificates: Path | None = None,
        port: int | None = None,
        login: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(folder, settings, port=port, login=login)
        if certificates is None:
            make_certificates(folder, names)
        self.certificates = certificates or folder
        self.settings |= {
            "port": "0",
            "tls-port": str(self.port),
            "tls-cert-file": str(self.certificates / "server.pem"),
            "tls-key-file": str(self.certificates / "server.key"),
            "tls-ca-cert-file": str(self.certificates / "ca.pem"),
            "tls-auth-clients": self.settings.get("tls-auth-clients", "optional"),
        }

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self.port}/0?{authority(self.certificates)}"

    def tls(self) -> dict[str, Any]:
        return {
            "ssl": True,
            "ssl_ca_certs": str(self.certificates / "ca.pem"),
            "ssl_certfile": str(self.certificates / "client.pem"),
            "ssl_keyfile": str(self.certificates / "client.key"),
            "ssl_check_hostname": False,
        }


def authority(certificates: Path) -> str:
    """The option of a URL that names whom to trust."""
    return f"ca={quote(str(certificates / 'ca.pem'), safe='')}"


def _server_of(certificates: Path | None, folder: Path, **options: Any) -> RedisServer:
    """A server with TLS if there are certificates, without it otherwise."""
    if certificates is None:
        return RedisServer(folder, **options)
    return TlsServer(folder, certificates=certificates, **options)


def _certificates(folder: Path, tls: bool) -> Path | None:
    """Some that all servers of a set-up share."""
    if not tls:
        return None
    place = folder / "certificates"
    place.mkdir()
    make_certificates(place)
    return place


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


_NOT_FOR_SENTINELS = ("save", "appendonly", "auto-aof-rewrite-percentage", "loglevel")


class SentinelSetup:
    """A primary, a replica and three sentinels, who ask for other credentials than the data's.

    Args:
        folder: Their data.
        tls: Whether all of them speak TLS only.
    """

    SERVICE = "taskmq-primary"
    DATA = ("jobs", "dätä p:w@d/")
    SENTINEL_PASSWORD = "s%ntinel #?"

    def __init__(self, folder: Path, *, tls: bool = False) -> None:
        self.certificates = _certificates(folder, tls)
        name, password = self.DATA
        # Sentinel and replication log in with the same user, which may do everything here.
        access = {
            "user": f'default off\nuser {name} on ">{password}" ~* &* +@all',
            "masteruser": name,
            "masterauth": f'"{password}"',
            "repl-diskless-sync-delay": "0",
        }
        if tls:
            access["tls-replication"] = "yes"
        self.primary = self._server(folder / "primary", access)
        self.replica = self._server(
            folder / "replica", {**access, "replicaof": f"127.0.0.1 {self.primary.port}"}
        )
        self.sentinels = [
            _server_of(
                self.certificates,
                folder / f"sentinel{number}",
                settings=self._watching(tls),
                login=("default", self.SENTINEL_PASSWORD),
            )
            for number in range(3)
        ]
        for sentinel in self.sentinels:
            for name in _NOT_FOR_SENTINELS:
                sentinel.settings.pop(name, None)

    def _server(self, folder: Path, settings: Mapping[str, str]) -> RedisServer:
        return _server_of(self.certificates, folder, settings=settings, login=self.DATA)

    def _watching(self, tls: bool) -> dict[str, str]:
        """The configuration of a sentinel."""
        name, password = self.DATA
        secret, service = self.SENTINEL_PASSWORD, self.SERVICE
        return {
            "requirepass": f'"{secret}"',
            **({"tls-replication": "yes"} if tls else {}),
            "sentinel": (
                f'sentinel-pass "{secret}"\n'
                f"sentinel monitor {service} 127.0.0.1 {self.primary.port} 2\n"
                f"sentinel auth-user {service} {name}\n"
                f'sentinel auth-pass {service} "{password}"\n'
                f"sentinel down-after-milliseconds {service} 1000\n"
                f"sentinel failover-timeout {service} 3000"
            ),
        }

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
        scheme, trust = "redis", ""
        if self.certificates is not None:
            scheme, trust = "rediss", f"&{authority(self.certificates)}"
        return (
            f"{scheme}+sentinel://{name}:{password}@{hosts}/{self.SERVICE}/0"
            f"?sentinel_password={other}{trust}"
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
        tls: Whether all of them speak TLS only.
    """

    def __init__(self, folder: Path, timeout: int = 1500, *, tls: bool = False) -> None:
        self.certificates = _certificates(folder, tls)
        self.nodes = [
            _server_of(
                self.certificates,
                folder / f"node{number}",
                settings={
                    **({"tls-cluster": "yes", "tls-replication": "yes"} if tls else {}),
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
        scheme, trust = "redis", ""
        if self.certificates is not None:
            scheme, trust = "rediss", f"&{authority(self.certificates)}"
        hosts = f"127.0.0.1:{self.nodes[0].port},127.0.0.1:{self.nodes[1].port}"
        return f"{scheme}://{hosts}/0?cluster=1{trust}"

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
