"""A TCP proxy before a server, which cuts, freezes and refuses connections when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

TIMEOUT = 10.0


class Proxy:
    """Forwards a port of its own to a server's; the port stays the same all its life.

    Args:
        target: The port of the server on loopback.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.accepted = 0
        """How many connections have come."""
        self.forwarded = 0
        """How many bytes have gone to the server."""
        self._target = target
        self._abandoned = 0
        self._loop = asyncio.new_event_loop()
        self._flowing: asyncio.Event
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._do(self._begin)

    @property
    def open(self) -> int:
        """How many clients are connected."""
        # Each has a writer towards it and one towards the server.
        return len(self._writers) // 2

    def cut(self) -> None:
        """Reset all connections; new ones are welcome."""
        self._do(self._cut)

    def refuse(self) -> None:
        """Cut, and take no connections."""
        self._do(self._refuse)

    def accept(self) -> None:
        """Take connections again."""
        self._do(self._listen)

    def freeze(self) -> None:
        """Keep and accept connections, and forward nothing."""
        self._do(self._freeze)

    def thaw(self) -> None:
        """Forward again, what has gathered first."""
        self._do(self._thaw)

    def abandon(self) -> None:
        """Forward nothing on the present connections, ever; new ones are as good as before."""
        self._abandoned = self.accepted

    def retarget(self, port: int) -> None:
        """Send new connections to another server."""
        self._target = port

    def close(self) -> None:
        """End it."""
        self._do(self._refuse)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT)
        self._loop.close()

    def _do(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(action(), self._loop).result(TIMEOUT)

    async def _begin(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        await self._listen()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        await self._cut()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _cut(self) -> None:
        for writer in self._writers:
            # Unlike close(), this does not wait for what the other side has yet to read.
            writer.transport.abort()

    async def _freeze(self) -> None:
        self._flowing.clear()

    async def _thaw(self) -> None:
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        number = self.accepted
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            behind, onward = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, onward}
        pumps = [
            asyncio.ensure_future(self._pump(number, reader, onward, counted=True)),
            asyncio.ensure_future(self._pump(number, behind, writer, counted=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            writer.transport.abort()
            onward.transport.abort()
            self._writers -= {writer, onward}

    async def _pump(
        self,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        counted: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._flowing.wait()
                if number <= self._abandoned:
                    continue
                self.forwarded += len(data) if counted else 0
                writer.write(data)
                await writer.drain()


@contextlib.contextmanager
def proxy_before(port: int) -> Generator[Proxy]:
    """A proxy for the time of a `with` block."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
