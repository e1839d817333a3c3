"""Waiting, locking and sending for synchronous code: what the flavours do not share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import httpx

from cloud_sandbox._api.call import Body, Data, Parts, Stream, piece_of

__all__ = ["HTTP", "Data", "Lock", "body", "shielded", "sleep", "tell"]

T = TypeVar("T")

HTTP = httpx.Client
Lock = threading.Lock
sleep = time.sleep

_CHUNK_BYTES = 256 << 10


def shielded() -> AbstractContextManager[object]:
    """Do nothing: no task is cancelled here."""
    return nullcontext()


def tell(handler: Callable[[T], object], value: T) -> None:
    """Call a handler."""
    handler(value)


def body(content: Body | None) -> bytes | Iterator[bytes] | None:
    """Return a request's body as httpx wants it."""
    if isinstance(content, Parts):
        return _joined(content)
    return _pieces(content) if isinstance(content, Stream) else content


def _joined(content: Parts) -> Iterator[bytes]:
    for part in content.parts:
        if isinstance(part, bytes):
            yield part
            continue
        yield from _pieces(part)


def _pieces(stream: Stream) -> Iterator[bytes]:
    read = stream.rewound()
    if read is not None:
        while piece := read(_CHUNK_BYTES):
            yield piece_of(piece)
    elif isinstance(stream.source, Iterable):
        for piece in stream.source:
            yield piece_of(piece)
    else:
        raise TypeError("an asynchronous iterable needs an AsyncSandbox")
