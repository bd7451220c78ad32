"""Start and stop private servers: `hatch run services up|down|status NAME`, or `running(NAME)` in a test.

Each listens on a free port of 127.0.0.1 only and keeps its data in a temporary folder. A server is
stopped by the pids it was started with, never by name.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

# Run as a script, the folder of `support` is not on the path yet.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from support.launching import (
    START_TIMEOUT,
    Server,
    Service,
    end,
    free_port,
    gone,
    run,
    spawn,
    wait_for_port,
)
from support.redis_services import (
    Redis,
    RedisCluster,
    RedisFull,
    RedisSentinel,
    RedisTls,
    RedisWithoutEval,
)
from support.waiting import wait_until

__all__ = ["Server", "Service", "end", "free_port", "gone", "run", "spawn", "wait_for_port"]


class Postgres(Server):
    package = "postgresql"
    programs: tuple[str, ...] = ("initdb", "postgres", "pg_isready")
    user = "postgres"

    def find(self, program: str) -> str | None:
        candidates = Path("/usr/lib/postgresql").glob(f"*/bin/{program}")
        newest = max(candidates, key=lambda path: float(path.parts[-3]), default=None)
        return str(newest) if newest else shutil.which(program)

    def start(self, folder: Path, pids: list[int]) -> str:
        data = folder / "data"
        data.mkdir(mode=0o700)
        self.own(data)
        init = [self.program("initdb"), "-D", str(data), "-U", "postgres", "--auth=trust"]
        run(self.command(*init, "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"), folder)
        return f"postgresql://postgres@127.0.0.1:{self.launch(data, folder, pids)}/postgres"

    def launch(self, data: Path, folder: Path, pids: list[int]) -> int:
        """Start a server on its data; its port."""
        port = free_port()
        settings = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={data}"]
        options = [word for setting in settings for word in ("-c", setting)]
        process = spawn(
            self.command(self.program("postgres"), "-D", str(data), *options),
            folder,
        )
        # Those that were started last are ended first: a standby would go on asking for its primary.
        pids.insert(0, process.pid)
        wait_for_port(port, process)
        self.wait_until_ready(port)
        return port

    def wait_until_ready(self, port: int) -> None:
        """It listens before it takes connections."""
        words = [self.program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]

        def ready() -> bool:
            return subprocess.run(words, check=False, timeout=START_TIMEOUT).returncode == 0

        wait_until(ready, START_TIMEOUT, 0.05, what=f"PostgreSQL on port {port}")


class PgBouncer(Postgres):
    """A transaction pooler with five connections, and the server behind it."""

    package = "pgbouncer"
    programs = ("pgbouncer", *Postgres.programs)

    def find(self, program: str) -> str | None:
        # It is installed outside of the PATH of ordinary users.
        found = super().find(program)
        outside = Path("/usr/sbin") / program
        return found or (str(outside) if outside.exists() else None)

    def start(self, folder: Path, pids: list[int]) -> str:
        behind = urlsplit(super().start(folder, pids)).port
        assert behind is not None
        return self.start_before(behind, folder, pids)

    def start_before(self, behind: int, folder: Path, pids: list[int]) -> str:
        """Start the pooler alone, before the server on a port."""
        port = free_port()
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={behind} user=postgres\n"
            f"[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=\n"
            "auth_type=any\npool_mode=transaction\ndefault_pool_size=5\nmax_client_conn=500\n"
            "server_reset_query_always=0\nquery_wait_timeout=10\n"
        )
        process = spawn(self.command(self.program("pgbouncer"), str(settings)), folder)
        # Ended first: it would hold the server's connections open.
        pids.insert(0, process.pid)
        wait_for_port(port, process)
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?pooler=transaction"


class PostgresPair(Postgres):
    """A primary, and a standby that follows it; `SELECT pg_promote()` on the second makes it the first."""

    programs = (*Postgres.programs, "pg_basebackup")

    def start(self, folder: Path, pids: list[int]) -> str:
        primary = urlsplit(super().start(folder, pids)).port
        data = folder / "standby"
        data.mkdir(mode=0o700)
        self.own(data)
        copy = [self.program("pg_basebackup"), "-D", str(data), "-R", "-X", "stream", "-c", "fast"]
        run(self.command(*copy, "-h", "127.0.0.1", "-p", str(primary), "-U", "postgres"), folder)
        port = self.launch(data, folder, pids)
        return f"postgresql://postgres@127.0.0.1:{primary},127.0.0.1:{port}/postgres"


class RabbitMQ(Server):
    package = "rabbitmq-server"
    programs = ("rabbitmq-server", "epmd")
    user = "rabbitmq"

    def find(self, program: str) -> str | None:
        own = Path("/usr/lib/rabbitmq/bin") / program
        return str(own) if own.exists() else shutil.which(program)

    def start(self, folder: Path, pids: list[int]) -> str:
        port, distribution, mapper = free_port(), free_port(), free_port()
        self.own(folder)
        plugins = folder / "enabled_plugins"
        plugins.write_text("[].")
        pid_file = folder / "pid"
        environment = {
            **os.environ,
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_NODENAME": f"taskmq{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(pid_file),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        # Its own port mapper, so that nothing of it stays behind and no other node is met.
        names = spawn(self.command(self.program("epmd")), folder, environment)
        pids.append(names.pid)
        wait_for_port(mapper, names)
        server = spawn(self.command(self.program("rabbitmq-server")), folder, environment)
        pids.insert(0, server.pid)
        wait_for_port(port, server)
        pid = int(wait_until(lambda: pid_file.exists() and pid_file.read_text().strip()))
        pids.insert(0, pid)
        return f"amqp://guest:guest@127.0.0.1:{port}/%2F"


SERVERS: dict[str, Server] = {
    "pgbouncer": PgBouncer(),
    "postgres": Postgres(),
    "postgres-pair": PostgresPair(),
    "rabbitmq": RabbitMQ(),
    "redis": Redis(),
    "redis-cluster": RedisCluster(),
    "redis-full": RedisFull(),
    "redis-noeval": RedisWithoutEval(),
    "redis-sentinel": RedisSentinel(),
    "redis-tls": RedisTls(),
}


def start(name: str) -> Service:
    folder = Path(tempfile.mkdtemp(prefix=f"taskmq-{name}-"))
    # The server's own account must reach its data through it.
    folder.chmod(0o755)
    started: list[int] = []
    try:
        url = SERVERS[name].start(folder, started)
    except BaseException:
        stop(Service(name, "", tuple(started), str(folder)))
        raise
    return Service(name, url, tuple(started), str(folder))


def stop(service: Service) -> None:
    """End it by its pids, gently first, and remove its data."""
    for pid in service.pids:
        # SIGINT is PostgreSQL's fast shutdown; the Erlang machine asks at its console instead.
        end(pid, signal.SIGTERM if service.name == "rabbitmq" else signal.SIGINT)
    shutil.rmtree(service.folder, ignore_errors=True)


@contextlib.contextmanager
def running(name: str) -> Generator[Service]:
    """A server of one's own for the time of a `with` block."""
    service = start(name)
    try:
        yield service
    finally:
        stop(service)


def install(names: Sequence[str]) -> bool:
    """Install the packages of these servers where that is allowed; whether all are there then."""
    packages = sorted(
        {
            word
            for name in names
            if SERVERS[name].missing()
            for word in SERVERS[name].package.split()
        }
    )
    if not packages:
        return True
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print(f"installing missing servers: {' '.join(packages)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0"]
    options = ["-y", "--no-install-recommends"]
    for words in ([*quiet, "update"], [*quiet, "install", *options, *packages]):
        subprocess.run(words, env=environment, check=False, stdout=subprocess.DEVNULL)
    return not any(SERVERS[name].missing() for name in names)


def state_file(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"taskmq-service-{name}-{os.getuid()}.json"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="hatch run services",
        description="Start or stop one private server on a free port of 127.0.0.1.",
        epilog="example: hatch run services up redis",
    )
    parser.add_argument("action", choices=("up", "down", "status"))
    parser.add_argument("name", choices=sorted(SERVERS))
    wanted = parser.parse_args()
    file = state_file(wanted.name)
    saved = json.loads(file.read_text()) if file.exists() else None
    service = Service(**saved) if saved and not all(map(gone, saved["pids"])) else None
    if wanted.action == "up":
        if service is None:
            if not install([wanted.name]):
                package = SERVERS[wanted.name].package
                raise SystemExit(f"{wanted.name} is missing; as root: apt-get install {package}")
            service = start(wanted.name)
            file.write_text(json.dumps(asdict(service)))
        print(service.url)
        return 0
    if wanted.action == "down":
        if service is not None:
            stop(service)
        file.unlink(missing_ok=True)
        print(f"{wanted.name} is down")
        return 0
    print(service.url if service else f"{wanted.name} is down")
    return 0 if service else 1


if __name__ == "__main__":
    sys.exit(main())
