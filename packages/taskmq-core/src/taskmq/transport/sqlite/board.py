"""The shared memory beside the file, and one sleeper's place and socket on it."""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import struct
import sys
import tempfile
import threading
from contextlib import suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from io import RawIOBase

if sys.platform != "win32":
    import fcntl

BY_QUEUE: Final = 1
BY_JOB: Final = 2

_MAGIC: Final = b"taskmq board 1\n\0"
_STAMPS: Final = 64
_BUCKETS: Final = 1024
_ANY: Final = _STAMPS + 8 * _BUCKETS
"""The stamp of every queue together, for workers of many."""
_FLAGS: Final = _ANY + 8
_PLACES: Final = 256
_PLACE: Final = _FLAGS + _PLACES
_PLACE_SIZE: Final = 384
_SIZE: Final = _PLACE + _PLACES * _PLACE_SIZE
_MAX_TOPICS: Final = 64
_EVERYTHING: Final = 0xFFFFFFFF
_ADDRESS: Final = 4 + 4 * _MAX_TOPICS
_MAX_ADDRESS: Final = 100
"""Socket paths end at 104 to 108 bytes, depending on the system."""


class SharedBoard:
    """The file `board` in the folder `FILE-wake`, mapped by every process that uses FILE."""

    def __init__(self, path: str) -> None:
        self.folder = Path(f"{path}-wake")
        self.folder.mkdir(exist_ok=True)
        # Open for as long as the map lives.
        self._file = open(self.folder / "board", "a+b", buffering=0)  # noqa: SIM115
        try:
            _fill(self._file)
            self._map = mmap.mmap(self._file.fileno(), _SIZE)
        except BaseException:
            self._file.close()
            raise
        if self._map[: len(_MAGIC)] != _MAGIC:
            self._map[: len(_MAGIC)] = _MAGIC
        self._stamp = count(int.from_bytes(secrets.token_bytes(4), "big") << 32)
        self._sender: socket.socket | None = None
        if sys.platform != "win32":
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)

    def stamps(self, hashes: Sequence[int]) -> bytes:
        """What was last written for these queues."""
        shared = self._map
        if len(hashes) > _MAX_TOPICS - 1:
            return shared[_ANY : _ANY + 8]
        if len(hashes) == 1:
            at = _STAMPS + 8 * (hashes[0] % _BUCKETS)
            return shared[at : at + 8]
        places = (_STAMPS + 8 * (number % _BUCKETS) for number in hashes)
        return b"".join(shared[at : at + 8] for at in places)

    def announce_queues(self, ready: Mapping[int, int]) -> None:
        """Stamp the queues, and wake about as many sleepers as there are messages."""
        shared = self._map
        stamp = (next(self._stamp) & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")
        shared[_ANY : _ANY + 8] = stamp
        for number in ready:
            at = _STAMPS + 8 * (number % _BUCKETS)
            shared[at : at + 8] = stamp
        if shared.find(b"\x01", _FLAGS, _FLAGS + _PLACES) < 0:
            return
        left = dict(ready)
        for place in self._flagged(BY_QUEUE):
            topics = self._topics(place)
            hit = next((n for n in left if topics is None or n in topics), None)
            if hit is not None and self._tell(place):
                left[hit] -= 1
                if left[hit] <= 0:
                    del left[hit]
                    if not left:
                        return

    def announce_jobs(self, rows: Sequence[int]) -> None:
        """Wake whoever waits for one of these rows."""
        if self._map.find(b"\x02", _FLAGS, _FLAGS + _PLACES) < 0:
            return
        ended = {row & 0xFFFFFFFF for row in rows}
        for place in self._flagged(BY_JOB):
            topics = self._topics(place)
            if topics is None or not topics.isdisjoint(ended):
                self._tell(place)

    def set_flag(self, place: int, flag: int) -> None:
        """Say that a sleeper sleeps, by what it wants to be woken, or that it is awake (0)."""
        self._map[_FLAGS + place] = flag

    def set_topics(self, place: int, topics: Sequence[int]) -> None:
        """Write what a sleeper wants to hear of."""
        start = _PLACE + place * _PLACE_SIZE
        if len(topics) > _MAX_TOPICS:
            struct.pack_into("<I", self._map, start, _EVERYTHING)
        else:
            values = [number & 0xFFFFFFFF for number in topics]
            struct.pack_into(f"<{1 + len(values)}I", self._map, start, len(values), *values)

    def take_place(self, address: bytes) -> int | None:
        """Find a free place, if need be that of a sleeper whose process is gone."""
        if sys.platform == "win32":
            # No sleeper has a socket there, so none needs a place to be told at.
            return None
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self._remove_dead()
            for place in range(_PLACES):
                if not self._address(place):
                    start = _PLACE + place * _PLACE_SIZE + _ADDRESS
                    self._map[start + 1 : start + 1 + len(address)] = address
                    self._map[start] = len(address)
                    return place
            return None
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def leave_place(self, place: int) -> None:
        """Free a place."""
        self._map[_FLAGS + place] = 0
        self._map[_PLACE + place * _PLACE_SIZE + _ADDRESS] = 0

    def socket_path(self) -> str | None:
        """A new path for a socket, in a temporary folder when ours is too deep for the system."""
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        for folder in (self.folder, _short_folder(self.folder)):
            path = str(folder / name)
            if len(os.fsencode(path)) <= _MAX_ADDRESS:
                with suppress(OSError):
                    folder.mkdir(mode=0o700, exist_ok=True)
                    return path
        return None

    def close(self) -> None:
        """Unmap the board."""
        if self._sender is not None:
            self._sender.close()
        # Another thread may be in the middle of an announcement; the map then goes with it.
        with suppress(BufferError):
            self._map.close()
        self._file.close()

    def _flagged(self, flag: int) -> Iterator[int]:
        flags = self._map[_FLAGS : _FLAGS + _PLACES]
        place = flags.find(flag)
        while place >= 0:
            yield place
            place = flags.find(flag, place + 1)

    def _topics(self, place: int) -> frozenset[int] | None:
        """What a sleeper wants to hear of; None is everything."""
        start = _PLACE + place * _PLACE_SIZE
        (number,) = struct.unpack_from("<I", self._map, start)
        if number > _MAX_TOPICS:
            return None
        return frozenset(struct.unpack_from(f"<{number}I", self._map, start + 4))

    def _address(self, place: int) -> bytes:
        start = _PLACE + place * _PLACE_SIZE + _ADDRESS
        return self._map[start + 1 : start + 1 + self._map[start]]

    def _tell(self, place: int) -> bool:
        # Its flag is taken down first, so that the next announcement goes to somebody else.
        self._map[_FLAGS + place] = 0
        address = self._address(place)
        if self._sender is None or not address:
            return False
        try:
            self._sender.sendto(b"\1", address)
        except (ConnectionRefusedError, FileNotFoundError):
            self._bury(place, address)
            return False
        except OSError:
            # A full buffer wakes it as well; anything else is left to its own looks.
            return True
        return True

    def _remove_dead(self) -> None:
        for place in range(_PLACES):
            address = self._address(place)
            if address and not _is_bound(address):
                self._bury(place, address)

    def _bury(self, place: int, address: bytes) -> None:
        self.leave_place(place)
        _remove_socket(os.fsdecode(address))


class Sleeper:
    """One blocked thread: its place on the board and its socket, or only an event where it has none."""

    def __init__(self, shared: SharedBoard | None) -> None:
        self.called = False
        self._shared = shared
        self._event = threading.Event()
        self._socket: socket.socket | None = None
        self._path: str | None = None
        self._place: int | None = None
        if shared is not None and sys.platform != "win32":
            with suppress(OSError):
                try:
                    self._bind(shared)
                except FileNotFoundError:
                    # Another process has just removed the folder that was empty until now.
                    self._bind(shared)

    @property
    def can_be_told(self) -> bool:
        """Whether other processes can end its sleep."""
        return self._place is not None

    def reset(self) -> None:
        """Forget earlier wake-ups before a new sleep."""
        self.called = False
        self._event.clear()
        if self._socket is not None:
            self._socket.setblocking(False)
            with suppress(OSError):
                while self._socket.recv(16):
                    pass

    def arm(self, flag: int, topics: Sequence[int]) -> None:
        """Ask to be woken; from here on nothing is missed."""
        if self._shared is not None and self._place is not None:
            self._shared.set_topics(self._place, topics)
            self._shared.set_flag(self._place, flag)

    def disarm(self) -> None:
        """Say that it is awake."""
        if self._shared is not None and self._place is not None:
            self._shared.set_flag(self._place, 0)

    def sleep(self, timeout: float) -> bool:
        """Block until told or called, or the time is over; True when woken."""
        if self.called:
            return True
        if self._socket is None:
            return self._event.wait(timeout)
        self._socket.settimeout(max(timeout, 0.0001))
        try:
            return bool(self._socket.recv(16))
        except OSError:
            # A time-out, or the socket was closed under it.
            return False

    def pause(self, seconds: float) -> None:
        """Do nothing for a moment unless called."""
        if seconds > 0 and not self.called:
            self._event.wait(seconds)

    def call(self) -> None:
        """End the sleep, from another thread of this process."""
        self.called = True
        self._event.set()
        if self._path is not None:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(b"\1", self._path)

    def close(self) -> None:
        """Free the place and the socket."""
        if self._shared is not None and self._place is not None:
            with suppress(ValueError):
                self._shared.leave_place(self._place)
        self._place = None
        if self._socket is not None:
            self._socket.close()
        if self._path is not None:
            _remove_socket(self._path)

    def abandon(self) -> None:
        """Close the child's copy of the socket; the parent goes on using it."""
        if self._socket is not None:
            self._socket.close()

    def _bind(self, shared: SharedBoard) -> None:
        path = shared.socket_path()
        if path is None:
            return
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bound.bind(path)
            self._place = shared.take_place(os.fsencode(path))
        except OSError:
            bound.close()
            raise
        self._socket, self._path = bound, path


def _fill(file: RawIOBase) -> None:
    """Bring the file to its size with written zeros, behind what others wrote meanwhile.

    A hole in it would be filled at the first access to the map, and on a full disk that ends the
    process with SIGBUS instead of an error here.
    """
    while (missing := _SIZE - os.fstat(file.fileno()).st_size) > 0:
        file.write(bytes(missing))


def _short_folder(folder: Path) -> Path:
    name = sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"taskmq-{os.getuid()}-{name}"


def _remove_socket(path: str) -> None:
    """Remove a socket, and a short folder with the last one; the board's own folder is never empty."""
    with suppress(OSError):
        os.unlink(path)
        os.rmdir(os.path.dirname(path))


def _is_bound(address: bytes) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True
