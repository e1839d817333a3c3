# Generated from _async by scripts/generate_sync.py: edit it there.
"""Answers that are read piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import TracebackType

import httpx

from cloud_sandbox._api.sse import Decoder, Event
from cloud_sandbox.errors import CloudSandboxError, ConnectionFailedError, SandboxTimeoutError

__all__ = ["ByteStream", "Events"]


class ByteStream:
    """The bytes of a file or an archive, piece by piece as they come.

    Iterate over it, inside a ``with`` block or to the end; leaving the
    block earlier closes the connection. It can be read once.

    Raises:
        ConnectionFailedError: the connection broke before the end.
        SandboxTimeoutError: the server stopped sending.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.iter_bytes()

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the answer."""
        return self._response.headers

    def __iter__(self) -> ByteStream:
        return self

    def __next__(self) -> bytes:
        try:
            return self._pieces.__next__()
        except StopIteration:
            self.close()
            raise
        except (httpx.TransportError, httpx.StreamError) as err:
            self.close()
            raise _broken(err) from err

    def read_all(self) -> bytes:
        """Return all that is left of it."""
        return b"".join(list(self))

    def close(self) -> None:
        """Stop reading; more than once is the same as once."""
        self._response.close()

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def _broken(err: httpx.TransportError | httpx.StreamError) -> CloudSandboxError:
    if isinstance(err, httpx.TimeoutException):
        return SandboxTimeoutError("the server stopped sending")
    return ConnectionFailedError(f"the connection broke: {err}")


class Events:
    """The server-sent events of a stream.

    Read them to the end: only then can the connection be used again.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._decoder = Decoder()
        self._ready: deque[Event] = deque()

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Event:
        while not self._ready:
            self._ready.extend(self._decoder.feed(self._stream.__next__()))
        return self._ready.popleft()
