"""Connections for scripts: as few as are used at once, handed out without the library's bookkeeping.

The library's pool looks at a connection before it gives it out (a system call) and counts for its
telemetry: about as much as sending a command and reading its reply. Here a connection that died while idle
is found by using it, which every call has to survive anyway.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import ResponseError

if TYPE_CHECKING:
    from collections.abc import Callable


class Lines:
    """A bounded number of connections.

    Args:
        make: Makes one, unconnected.
        size: How many may be in use at once.
        timeout: How long a call waits for one, seconds.
    """

    def __init__(self, make: Callable[[], Any], size: int, timeout: float) -> None:
        self._make = make
        self._size = size
        self._timeout = timeout
        self._free = threading.Semaphore(size)
        self._idle: deque[Any] = deque()

    def ask(self, packed: bytes) -> Any:
        """Send one packed command; its reply.

        Raises:
            redis.exceptions.RedisError: The reply is an error, or the connection was lost.
        """
        if not self._free.acquire(timeout=self._timeout):
            raise ConnectionLost(
                f"all {self._size} connections were in use for {self._timeout:g} s; "
                f"?connections= allows more"
            )
        try:
            try:
                line = self._idle.pop()
            except IndexError:
                line = self._make()
            try:
                if line._sock is None:  # noqa: SLF001  # connect() itself is not free
                    line.connect()
                line.send_packed_command([packed], check_health=False)
                reply = line.read_response()
            except ResponseError:
                self._idle.append(line)
                raise
            except BaseException:
                # What is on its way would be taken for the next call's reply.
                line.disconnect()
                raise
            self._idle.append(line)
            return reply
        finally:
            self._free.release()

    def drop_idle(self) -> None:
        """Disconnect what nobody uses."""
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return
            line.disconnect()


def evalsha(sha: str, base: bytes) -> bytes:
    """The part of a packed EVALSHA of one key and one argument that is the same for each call."""
    return b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n$%d\r\n%b\r\n$" % (
        sha.encode(),
        len(base),
        base,
    )
