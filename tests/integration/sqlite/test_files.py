"""Files that can't be used, URLs that can't be read, and what the doctor finds."""

import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from taskmq.errors import ConfigError, TransportError, TransportUnavailable
from taskmq.transport.sqlite import SqliteTransport
from taskmq.transport.sqlite.board import SharedBoard
from taskmq.transport.sqlite.schema import VERSION
from taskmq.transport.types import Message, QueueShare, ReserveRequest


def message(name: str, envelope: bytes = b"call") -> Message:
    return Message(id=name, task="t", queue="q", envelope=envelope)


def test_url_with_three_slashes_is_relative_and_with_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = SqliteTransport.from_url("sqlite:///jobs%20here.db")
    absolute = SqliteTransport.from_url(f"sqlite:///{tmp_path}/other.db?synchronous=full")
    assert relative.describe()["url"] == f"sqlite:///{tmp_path}/jobs here.db"
    assert absolute.describe() == {"url": f"sqlite:///{tmp_path}/other.db", "synchronous": "full"}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///x.db?synchronous=off", "one of 'normal', 'full'"),
        ("sqlite:///x.db?sync=full", "synchronous"),
        ("sqlite://host/x.db", "three slashes"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "memory://"),
    ],
)
def test_bad_urls_are_refused_with_what_is_allowed(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SqliteTransport.from_url(url)


def test_synchronous_full_reaches_the_connection(tmp_path: Path) -> None:
    transport = SqliteTransport(tmp_path / "x.db", synchronous="full")
    assert transport._database.query("PRAGMA synchronous") == [(2,)]
    transport.close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    transport = SqliteTransport(tmp_path / "none" / "x.db")
    with pytest.raises(ConfigError, match="does not exist: create it"):
        transport.enqueue([message("a")])


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        SqliteTransport(tmp_path).ping()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do anything")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="no permission"):
            SqliteTransport(tmp_path / "x.db").ping()
    finally:
        tmp_path.chmod(0o700)


def test_a_file_that_is_no_database_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_text("dear diary, " * 1_000)
    with pytest.raises(TransportError, match="is not a SQLite database"):
        SqliteTransport(path).ping()
    assert path.read_text() == "dear diary, " * 1_000


def test_a_database_of_another_application_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE jobs (mine)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(TransportError, match="another application"):
        SqliteTransport(path).enqueue([message("a")])
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    transport = SqliteTransport(path)
    assert transport.migrate() == [f"{path}: schema version {VERSION} (new)"]
    assert transport.migrate() == []
    transport.close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(TransportError, match="upgrade taskmq-core"):
        SqliteTransport(path).ping()
    finding = SqliteTransport(path).diagnose()[0]
    assert finding.level == "error"


def test_a_damaged_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    transport = SqliteTransport(path)
    transport.enqueue([message(f"job-{n}", b"x" * 900) for n in range(200)])
    transport.close()
    with path.open("r+b") as file:
        for page in range(3, 60):
            file.seek(page * 4096)
            file.write(b"\xa5" * 4096)
    transport = SqliteTransport(path)
    levels = {finding.level for finding in transport.diagnose()}
    assert "error" in levels
    with pytest.raises(TransportError, match="damaged"):
        transport.stats()
        transport.list_jobs(limit=10_000)
    transport.close()


def test_doctor_is_content_with_a_fresh_file(tmp_path: Path) -> None:
    transport = SqliteTransport(tmp_path / "x.db")
    findings = {finding.subject: finding for finding in transport.diagnose()}
    assert {"integrity", "journal", "schema", "log", "space", "file system"} <= set(findings)
    assert {findings[name].level for name in ("integrity", "journal", "schema", "log")} == {"ok"}
    transport.close()


FULL = """
import resource, signal, sys
from taskmq.errors import TransportUnavailable
from taskmq.transport.sqlite import SqliteTransport
from taskmq.transport.sqlite.board import SharedBoard
from taskmq.transport.types import Message
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
transport = SqliteTransport(sys.argv[1])
transport.enqueue([Message(id="before", task="t", queue="q", envelope=b"x")])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    for number in range(100):
        many = [Message(id=f"{number}-{n}", task="t", queue="q", envelope=b"x" * 1500) for n in range(50)]
        transport.enqueue(many)
except TransportUnavailable as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(len(transport.get_jobs([f"{number}-{n}" for n in range(50)])) - transport.get_jobs(
    [f"{number}-{n}" for n in range(50)]).count(None))
print(transport.enqueue([Message(id="after", task="t", queue="q", envelope=b"x")])[0].status)
"""


def test_a_full_disk_is_one_clear_error_that_changes_nothing(tmp_path: Path) -> None:
    assert resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "x.db")],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.stderr == ""
    error, stored, status = done.stdout.splitlines()
    assert "nothing was changed" in error
    assert stored == "0"
    assert status == "created"


def test_the_board_of_wake_ups_has_no_hole_that_a_full_disk_turns_into_a_bus_error(
    tmp_path: Path,
) -> None:
    board = SharedBoard(str(tmp_path / "x.db"))
    status = os.stat(board.folder / "board")
    board.close()
    # Blocks of 512 bytes that the file really has, whatever its length says.
    assert status.st_blocks * 512 >= status.st_size > 0


def test_a_file_too_deep_for_sockets_leaves_nothing_among_the_temporary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with tempfile.TemporaryDirectory() as name:
        short = Path(name)
        monkeypatch.setattr("tempfile.tempdir", name)
        # Twice: the folder that is gone is made anew.
        for _ in range(2):
            transport = SqliteTransport(deep / "x.db")
            transport.wait("w", ["q"], 0.0)
            (folder,) = short.iterdir()
            assert len(list(folder.iterdir())) == 1
            transport.close()
            assert list(short.iterdir()) == []


def test_a_board_that_finds_no_room_leaves_wake_ups_to_polling(tmp_path: Path) -> None:
    transport = SqliteTransport(tmp_path / "x.db")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    transport.ping()
    # Python ignores SIGXFSZ, so the limit is an error as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        transport.wait("w", ["q"], 0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert transport.enqueue([message("a")])[0].status == "created"
    assert not transport.wait("w", ["q"], 0.0)
    transport.close()


@pytest.mark.parametrize("look", ["write", "read"])
@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "deleted"])
def test_a_file_that_is_another_now_is_told_and_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str, replaced: bool
) -> None:
    monkeypatch.setattr("taskmq.transport.sqlite.database._LOOK_EVERY", 0.0)
    old = SqliteTransport(tmp_path / "x.db")
    old.enqueue([message("a")])
    for each in tmp_path.glob("x.db*"):
        if each.is_file():
            each.rename(tmp_path / f"old-{each.name}") if replaced else each.unlink()
    new = SqliteTransport(tmp_path / "x.db")
    new.enqueue([message("b")])

    with pytest.raises(TransportUnavailable, match="deleted or replaced while it was in use"):
        old.enqueue([message("c")]) if look == "write" else old.ping()
    assert [record is not None for record in old.get_jobs(["a", "b", "c"])] == [False, True, False]
    old.enqueue([message("d")])
    assert new.get_jobs(["d"])[0] is not None
    new.close()
    old.close()


def test_a_folder_that_has_gone_is_an_outage_and_no_slip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskmq.transport.sqlite.database._LOOK_EVERY", 0.0)
    place = tmp_path / "disk"
    place.mkdir()
    transport = SqliteTransport(place / "x.db")
    transport.enqueue([message("a")])
    place.rename(tmp_path / "away")
    with pytest.raises(TransportUnavailable, match="deleted or replaced"):
        transport.ping()
    with pytest.raises(TransportUnavailable, match="does not exist"):
        transport.ping()
    (tmp_path / "away").rename(place)
    assert transport.get_jobs(["a"])[0] is not None
    transport.close()


def test_a_file_that_can_be_written_no_more_is_an_outage_that_costs_no_outcome(
    tmp_path: Path,
) -> None:
    transport = SqliteTransport(tmp_path / "x.db")
    transport.enqueue([message("a")])
    writer = transport._database._writer
    assert writer is not None
    writer.execute("PRAGMA query_only = ON")
    with pytest.raises(TransportUnavailable, match="can't be written"):
        transport.enqueue([message("b")])
    writer.execute("PRAGMA query_only = OFF")
    assert transport.enqueue([message("b")])[0].status == "created"
    transport.close()


def test_a_closed_transport_says_so(tmp_path: Path) -> None:
    transport = SqliteTransport(tmp_path / "x.db")
    transport.ping()
    transport.close()
    transport.close()
    with pytest.raises(TransportError, match="is closed"):
        transport.enqueue([message("a")])
    with pytest.raises(TransportError, match="is closed"):
        transport.get_jobs(["a"])


def test_large_envelopes_come_back_whole(tmp_path: Path) -> None:
    transport = SqliteTransport(tmp_path / "x.db")
    sizes = [0, 1, 1_999, 2_000, 2_001, 250_000]
    transport.enqueue([message(f"job-{size}", b"\0x" * size) for size in sizes])
    request = ReserveRequest(worker="w", queues=(QueueShare("q"),), limit=10)
    deliveries = transport.reserve(request).deliveries
    assert [len(delivery.envelope) for delivery in deliveries] == [2 * size for size in sizes]
    records = transport.get_jobs([f"job-{size}" for size in sizes], envelopes=True)
    assert [record.envelope for record in records if record] == [b"\0x" * size for size in sizes]
    transport.close()
