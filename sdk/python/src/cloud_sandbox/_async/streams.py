"""Answers that are read piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import TracebackType

import httpx

from cloud_sandbox._api.sse import Decoder, Event
from cloud_sandbox.errors import CloudSandboxError, ConnectionFailedError, SandboxTimeoutError

__all__ = ["AsyncByteStream", "AsyncEvents"]


class AsyncByteStream:
    """The bytes of a file or an archive, piece by piece as they come.

    Iterate over it, inside an ``async with`` block or to the end; leaving the
    block earlier closes the connection. It can be read once.

    Raises:
        ConnectionFailedError: the connection broke before the end.
        SandboxTimeoutError: the server stopped sending.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.aiter_bytes()

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the answer."""
        return self._response.headers

    def __aiter__(self) -> AsyncByteStream:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._pieces.__anext__()
        except StopAsyncIteration:
            await self.aclose()
            raise
        except (httpx.TransportError, httpx.StreamError) as err:
            await self.aclose()
            raise _broken(err) from err

    async def read_all(self) -> bytes:
        """Return all that is left of it."""
        return b"".join([piece async for piece in self])

    async def aclose(self) -> None:
        """Stop reading; more than once is the same as once."""
        await self._response.aclose()

    async def __aenter__(self) -> AsyncByteStream:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.aclose()


def _broken(err: httpx.TransportError | httpx.StreamError) -> CloudSandboxError:
    if isinstance(err, httpx.TimeoutException):
        return SandboxTimeoutError("the server stopped sending")
    return ConnectionFailedError(f"the connection broke: {err}")


class AsyncEvents:
    """The server-sent events of a stream.

    Read them to the end: only then can the connection be used again.
    """

    def __init__(self, stream: AsyncByteStream) -> None:
        self._stream = stream
        self._decoder = Decoder()
        self._ready: deque[Event] = deque()

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            self._ready.extend(self._decoder.feed(await self._stream.__anext__()))
        return self._ready.popleft()
