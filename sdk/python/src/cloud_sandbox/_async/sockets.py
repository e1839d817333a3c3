"""WebSockets over the client's own connections."""

from __future__ import annotations

import base64
import hashlib
import os
from collections import deque
from typing import Any

import httpcore
import httpx
from wsproto import ConnectionType
from wsproto.connection import Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

from cloud_sandbox.errors import ConnectionFailedError, ProtocolError, SandboxTimeoutError

from . import _io

__all__ = ["ACCEPT", "AsyncSocket", "handshake"]

# Holds the proof that the server means this WebSocket.
ACCEPT = "Sec-WebSocket-Accept"

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_READ_BYTES = 64 << 10
# The server says every 30 s that it lives.
_SILENCE_SECONDS = 90.0
_WRITE_SECONDS = 60.0
_MAX_TEXT_CHARS = 4 << 20

_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, OSError)


def handshake() -> tuple[dict[str, str], str]:
    """Return headers that ask for a WebSocket, and what has to come back."""
    key = base64.b64encode(os.urandom(16))
    digest = hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest()
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": key.decode(),
        "Sec-WebSocket-Version": "13",
    }
    return headers, base64.b64encode(digest).decode()


class AsyncSocket:
    """A WebSocket: one reader at a time, and any number of writers.

    Args:
        response: the answer to the handshake; the socket closes it.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        # httpx gives no type to it.
        self._stream: Any = response.extensions["network_stream"]
        self._protocol = Connection(ConnectionType.CLIENT)
        self._events: deque[Event] = deque()
        self._sending = _io.Lock()
        self._text: list[str] = []
        self._closed = False

    async def receive(self) -> str | bytes | None:
        """Return the next message, or the next bytes of one; None when it was closed.

        Raises:
            ConnectionFailedError: the connection broke.
            SandboxTimeoutError: the server says nothing any more.
        """
        while not self._closed:
            while self._events:
                event = self._events.popleft()
                if isinstance(event, BytesMessage) and event.data:
                    return bytes(event.data)
                if isinstance(event, TextMessage):
                    self._add(event.data)
                    if event.message_finished:
                        return self._taken()
                elif isinstance(event, Ping):
                    await self._send(event.response())
                elif isinstance(event, CloseConnection):
                    await self._leave(event)
            if not self._closed:
                await self._fill()
        return None

    async def _fill(self) -> None:
        try:
            data = await self._stream.read(_READ_BYTES, timeout=_SILENCE_SECONDS)
            self._protocol.receive_data(data or None)
            self._events.extend(self._protocol.events())
        except httpcore.TimeoutException as err:
            raise SandboxTimeoutError("the server stopped sending") from err
        except _BROKEN as err:
            if not self._closed:
                raise ConnectionFailedError(f"the connection broke: {err}") from err

    def _add(self, piece: str) -> None:
        self._text.append(piece)
        if sum(map(len, self._text)) > _MAX_TEXT_CHARS:
            raise ProtocolError("the server sent a message that is too large")

    def _taken(self) -> str:
        text = "".join(self._text)
        self._text.clear()
        return text

    async def _leave(self, event: CloseConnection) -> None:
        # wsproto tells of frames that cannot be read as of an end that nobody asked for.
        unreadable = self._protocol.state is ConnectionState.OPEN
        await self.aclose()
        if unreadable:
            raise ProtocolError(f"the server broke the WebSocket's rules: {event.reason}")
        if event.code != 1000:
            reason = event.reason or f"code {int(event.code)}"
            raise ConnectionFailedError(f"the server closed the WebSocket: {reason}")

    async def send(self, message: str | bytes) -> None:
        """Send a message.

        Raises:
            ConnectionFailedError: the connection broke, or was closed.
        """
        if isinstance(message, str):
            await self._send(TextMessage(message))
        else:
            await self._send(BytesMessage(message))

    async def _send(self, event: Event) -> None:
        try:
            async with self._sending:
                await self._stream.write(self._protocol.send(event), timeout=_WRITE_SECONDS)
        except httpcore.TimeoutException as err:
            raise SandboxTimeoutError("the server takes nothing any more") from err
        except (LocalProtocolError, *_BROKEN) as err:
            raise ConnectionFailedError(f"the connection is closed: {err}") from err

    async def aclose(self) -> None:
        """Close it; more than once is the same as once."""
        if self._closed:
            return
        self._closed = True
        with _io.shielded():
            try:
                await self._send(CloseConnection(code=1000))
            except (ConnectionFailedError, SandboxTimeoutError):
                pass  # it is closed already
            finally:
                await self._response.aclose()
