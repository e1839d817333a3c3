"""A process whose input and output are at hand."""

from __future__ import annotations

from types import TracebackType

from cloud_sandbox._api import messages, processes
from cloud_sandbox.errors import ConnectionFailedError
from cloud_sandbox.models import ProcessInfo, TerminalSize

from .client import AsyncClient
from .following import AWAY, AsyncPatience
from .sockets import AsyncSocket

__all__ = ["AsyncTerminal"]


class AsyncTerminal:
    """What a process shows and reads, over one connection.

    Iterate over it for the bytes that the process writes, until it has ended;
    iterate all the while, because that also keeps the connection alive. Other
    tasks may write meanwhile. When the connection breaks, reading goes on where
    it was. Leaving the ``async with`` block leaves the process running, and any
    number of clients may be attached to one.
    """

    def __init__(self, client: AsyncClient, sandbox_id: str, process_id: str, start: int) -> None:
        self._client = client
        self._sandbox_id = sandbox_id
        self._process_id = process_id
        self._offset = start
        self._dropped = 0
        self._info: ProcessInfo | None = None
        self._socket: AsyncSocket | None = None
        self._patience = AsyncPatience()
        self._closed = False
        self._over = False  # all of the output of a process that has ended was received

    @classmethod
    async def open(
        cls, client: AsyncClient, sandbox_id: str, process_id: str, start: int
    ) -> AsyncTerminal:
        """Attach to a process."""
        terminal = cls(client, sandbox_id, process_id, start)
        await terminal._connect()
        return terminal

    async def _connect(self) -> None:
        call = processes.attach(self._sandbox_id, self._process_id, self._offset)
        self._socket = await self._client.connect(call)

    @property
    def process_id(self) -> str:
        """Names the process in its Sandbox."""
        return self._process_id

    @property
    def info(self) -> ProcessInfo | None:
        """The process as it was when the connection opened, or when it ended."""
        return self._info

    @property
    def offset(self) -> int:
        """Where the output is; below 0 before the first of it came."""
        return self._offset

    @property
    def dropped(self) -> int:
        """How many bytes were left out, because they came too fast or are kept no more."""
        return self._dropped

    def __aiter__(self) -> AsyncTerminal:
        return self

    async def __anext__(self) -> bytes:
        """Return what the process writes next.

        Raises:
            CloudSandboxError: what was written, or asked for, changed nothing.
            ConnectionFailedError: the server was away for a minute.
        """
        while not (self._closed or self._over):
            try:
                message = await self._receive()
            except AWAY as err:
                await self._lose()
                if not self._closed:
                    await self._patience.wait(err)
                continue
            if isinstance(message, bytes):
                self._patience.reset()
                self._offset += len(message)
                return message
            self._heed(messages.parse(message))
        await self.aclose()
        raise StopAsyncIteration

    async def _receive(self) -> str | bytes:
        if self._socket is None:
            await self._connect()
        assert self._socket is not None  # noqa: S101 - it was just made
        message = await self._socket.receive()
        if message is None:
            raise ConnectionFailedError("the connection was closed before the process ended")
        return message

    def _heed(self, message: messages.Message) -> None:
        if message.error is not None:
            raise message.error
        if message.type == "dropped":
            self._dropped += max(message.offset - self._offset, 0)
        if message.type in ("start", "dropped", "end"):
            self._offset = message.offset
        # "start" of a process that has ended says so too, before its output.
        self._over = message.type == "end"
        self._info = message.process or self._info

    async def write(self, data: str | bytes) -> None:
        """Let the process read this; str is sent as UTF-8.

        Raises:
            ConnectionFailedError: the connection broke; some of it may have been
                read.
        """
        await self._send(data.encode() if isinstance(data, str) else data)

    async def resize(self, cols: int, rows: int) -> None:
        """Change the size of the terminal, in characters."""
        await self._send(messages.resize(TerminalSize(cols, rows)))

    async def signal(self, name: str | int) -> None:
        """Send a signal, such as ``"INT"``; see ``AsyncProcess.signal``."""
        await self._send(messages.signal(name))

    async def send_eof(self) -> None:
        """End its input; a terminal is sent Ctrl-D."""
        await self._send(messages.eof())

    async def _send(self, message: str | bytes) -> None:
        if self._socket is None:
            raise ConnectionFailedError("the terminal is not connected")
        await self._socket.send(message)

    async def _lose(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.aclose()

    async def aclose(self) -> None:
        """Leave; the process goes on. More than once is the same as once."""
        self._closed = True
        await self._lose()

    async def __aenter__(self) -> AsyncTerminal:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.aclose()
