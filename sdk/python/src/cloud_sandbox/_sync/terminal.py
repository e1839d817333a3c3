# Generated from _async by scripts/generate_sync.py: edit it there.
"""A process whose input and output are at hand."""

from __future__ import annotations

from types import TracebackType

from cloud_sandbox._api import messages, processes
from cloud_sandbox.errors import ConnectionFailedError
from cloud_sandbox.models import ProcessInfo, TerminalSize

from .client import Client
from .following import AWAY, Patience
from .sockets import Socket

__all__ = ["Terminal"]


class Terminal:
    """What a process shows and reads, over one connection.

    Iterate over it for the bytes that the process writes, until it has ended;
    iterate all the while, because that also keeps the connection alive. Other
    tasks may write meanwhile. When the connection breaks, reading goes on where
    it was. Leaving the ``with`` block leaves the process running, and any
    number of clients may be attached to one.
    """

    def __init__(self, client: Client, sandbox_id: str, process_id: str, start: int) -> None:
        self._client = client
        self._sandbox_id = sandbox_id
        self._process_id = process_id
        self._offset = start
        self._dropped = 0
        self._info: ProcessInfo | None = None
        self._socket: Socket | None = None
        self._patience = Patience()
        self._closed = False
        self._over = False  # all of the output of a process that has ended was received

    @classmethod
    def open(cls, client: Client, sandbox_id: str, process_id: str, start: int) -> Terminal:
        """Attach to a process."""
        terminal = cls(client, sandbox_id, process_id, start)
        terminal._connect()
        return terminal

    def _connect(self) -> None:
        call = processes.attach(self._sandbox_id, self._process_id, self._offset)
        self._socket = self._client.connect(call)

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

    def __iter__(self) -> Terminal:
        return self

    def __next__(self) -> bytes:
        """Return what the process writes next.

        Raises:
            CloudSandboxError: what was written, or asked for, changed nothing.
            ConnectionFailedError: the server was away for a minute.
        """
        while not (self._closed or self._over):
            try:
                message = self._receive()
            except AWAY as err:
                self._lose()
                if not self._closed:
                    self._patience.wait(err)
                continue
            if isinstance(message, bytes):
                self._patience.reset()
                self._offset += len(message)
                return message
            self._heed(messages.parse(message))
        self.close()
        raise StopIteration

    def _receive(self) -> str | bytes:
        if self._socket is None:
            self._connect()
        assert self._socket is not None  # noqa: S101 - it was just made
        message = self._socket.receive()
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

    def write(self, data: str | bytes) -> None:
        """Let the process read this; str is sent as UTF-8.

        Raises:
            ConnectionFailedError: the connection broke; some of it may have been
                read.
        """
        self._send(data.encode() if isinstance(data, str) else data)

    def resize(self, cols: int, rows: int) -> None:
        """Change the size of the terminal, in characters."""
        self._send(messages.resize(TerminalSize(cols, rows)))

    def signal(self, name: str | int) -> None:
        """Send a signal, such as ``"INT"``; see ``Process.signal``."""
        self._send(messages.signal(name))

    def send_eof(self) -> None:
        """End its input; a terminal is sent Ctrl-D."""
        self._send(messages.eof())

    def _send(self, message: str | bytes) -> None:
        if self._socket is None:
            raise ConnectionFailedError("the terminal is not connected")
        self._socket.send(message)

    def _lose(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def close(self) -> None:
        """Leave; the process goes on. More than once is the same as once."""
        self._closed = True
        self._lose()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()
