"""Waiting, locking and sending for asynchronous code: what the flavours do not share."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager
from typing import TypeVar

import anyio
import anyio.to_thread
import httpx

from cloud_sandbox._api.call import AsyncData, Body, Parts, Stream, piece_of

__all__ = ["HTTP", "Data", "Lock", "body", "shielded", "sleep", "tell"]

T = TypeVar("T")

Data = AsyncData
HTTP = httpx.AsyncClient
Lock = anyio.Lock
sleep = anyio.sleep

_CHUNK_BYTES = 256 << 10
# How long tidying up may take after its task was cancelled.
_TIDY_SECONDS = 30.0


def shielded() -> AbstractContextManager[object]:
    """Let what ends things go on, for a while, in a task that was cancelled."""
    return anyio.move_on_after(_TIDY_SECONDS, shield=True)


async def tell(handler: Callable[[T], object], value: T) -> None:
    """Call a handler, which may be a coroutine function."""
    result = handler(value)
    if inspect.isawaitable(result):
        await result


def body(content: Body | None) -> bytes | AsyncIterator[bytes] | None:
    """Return a request's body as httpx wants it."""
    if isinstance(content, Parts):
        return _joined(content)
    return _pieces(content) if isinstance(content, Stream) else content


async def _joined(content: Parts) -> AsyncIterator[bytes]:
    for part in content.parts:
        if isinstance(part, bytes):
            yield part
            continue
        async for piece in _pieces(part):
            yield piece


async def _pieces(stream: Stream) -> AsyncIterator[bytes]:
    read = stream.rewound()
    if read is not None:
        # Reading a file may block, and everything else must go on.
        while piece := await anyio.to_thread.run_sync(read, _CHUNK_BYTES):
            yield piece_of(piece)
    elif isinstance(stream.source, AsyncIterable):
        async for piece in stream.source:
            yield piece_of(piece)
    elif isinstance(stream.source, Iterable):
        for piece in stream.source:
            yield piece_of(piece)
