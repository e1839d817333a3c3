"""Streams of events that are opened again where they broke."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from cloud_sandbox._api import failures
from cloud_sandbox._api.call import Call
from cloud_sandbox._api.sse import Event
from cloud_sandbox._retry import backoff
from cloud_sandbox.errors import (
    CloudSandboxError,
    ConnectionFailedError,
    SandboxTimeoutError,
    UnavailableError,
)

from . import _io
from .streams import AsyncByteStream, AsyncEvents

if TYPE_CHECKING:
    from .client import AsyncClient

__all__ = ["AWAY", "AsyncFollower", "AsyncPatience"]

# What a server that is restarted answers with.
AWAY = (ConnectionFailedError, SandboxTimeoutError, UnavailableError)
# A server that is restarted is back within this.
_PATIENCE_SECONDS = 60.0


class AsyncPatience:
    """Decides how long to wait for a server that is away."""

    def __init__(self) -> None:
        self._tries = 0  # since all was well
        self._give_up = 0.0  # monotonic time

    def reset(self) -> None:
        """All is well."""
        self._tries = 0

    async def wait(self, err: CloudSandboxError) -> None:
        """Pause before another try, or raise err when it has lasted a minute."""
        if self._tries == 0:
            self._give_up = time.monotonic() + _PATIENCE_SECONDS
        elif time.monotonic() >= self._give_up:
            raise err
        self._tries += 1
        pause = backoff(self._tries, random.random())  # noqa: S311 - spreads clients
        await _io.sleep(max(pause, min(err.retry_after or 0.0, _PATIENCE_SECONDS)))


class AsyncFollower:
    """Reads events, and goes on from where it was when the connection breaks.

    Args:
        client: the connection.
        ask: makes the request that goes on from where the reader is.
    """

    def __init__(self, client: AsyncClient, ask: Callable[[], Call[object]]) -> None:
        self._client = client
        self._ask = ask
        self._stream: AsyncByteStream | None = None
        self._events: AsyncEvents | None = None
        self._closed = False
        self._patience = AsyncPatience()

    async def open(self) -> None:
        """Begin."""
        self._stream = await self._client.open(self._ask())
        self._events = AsyncEvents(self._stream)

    async def next(self) -> Event | None:
        """Return the next event; None when it was closed.

        Raises:
            CloudSandboxError: the server ended the stream with an error, or was
                away for a minute.
        """
        while not self._closed:
            try:
                if self._events is None:
                    await self.open()
                event = await self._next_event()
            except AWAY as err:
                await self._leave()
                if not self._closed:
                    await self._patience.wait(err)
                continue
            if event.name != "start":  # each stream begins with one
                self._patience.reset()
            return event
        return None

    async def _next_event(self) -> Event:
        assert self._events is not None  # noqa: S101 - next has opened it
        try:
            event = await self._events.__anext__()
        except StopAsyncIteration:
            raise ConnectionFailedError("the stream ended before its last event") from None
        if event.name == "error":
            raise failures.of_event(event)
        return event

    async def finish(self) -> None:
        """Read what comes after the last event, so that the connection is used again."""
        with suppress(StopAsyncIteration, CloudSandboxError):
            while self._events is not None:
                await self._events.__anext__()

    async def _leave(self) -> None:
        stream, self._stream, self._events = self._stream, None, None
        if stream is not None:
            await stream.aclose()

    async def aclose(self) -> None:
        """Stop; more than once is the same as once."""
        self._closed = True
        await self._leave()
