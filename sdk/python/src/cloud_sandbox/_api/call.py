"""A request that knows how to read its answer."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Generic, TypeVar
from urllib.parse import quote

from . import fields

Path = str | os.PathLike[str]
Data = str | bytes | bytearray | memoryview | IO[bytes] | IO[str] | Iterable[str | bytes]
AsyncData = Data | AsyncIterable[str | bytes]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# How long the server may be silent, in seconds, beyond what it was asked to do.
READ_SECONDS = 60.0
_MAX_KEY = 255


@dataclass(frozen=True)
class Answer:
    """What came back: never an error, which is raised before anyone decodes."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> fields.Object:
        """Return the body as a JSON object; anything else is a ProtocolError."""
        return fields.parse_object(self.content)


class Stream:
    """A body that is sent as it is read.

    Attributes:
        source: an open file, or an iterable of pieces, synchronous or not.
        replayable: it can be sent again from its beginning.
    """

    def __init__(self, source: object) -> None:
        self.source = source
        self._start: int | None = None
        try:
            if source.seekable():  # type: ignore[attr-defined]
                self._start = source.tell()  # type: ignore[attr-defined]
        except (AttributeError, OSError, ValueError):
            pass  # it cannot be told from where, so it is sent once

    @property
    def replayable(self) -> bool:
        """Whether it can be sent again from its beginning."""
        return self._start is not None

    def rewound(self) -> Callable[[int], object] | None:
        """Return how to read it from its beginning; None if it is no file."""
        read = getattr(self.source, "read", None)
        if not callable(read):
            return None
        if self._start is not None:
            self.source.seek(self._start)  # type: ignore[attr-defined]
        return read  # type: ignore[no-any-return]


class Parts:
    """A body of several parts, one after the other.

    Attributes:
        parts: what they are.
        replayable: all of it can be sent again from its beginning.
    """

    def __init__(self, parts: Sequence[bytes | Stream]) -> None:
        self.parts = parts

    @property
    def replayable(self) -> bool:
        """Whether all of it can be sent again from its beginning."""
        return all(part.replayable for part in self.parts if isinstance(part, Stream))


Body = bytes | Stream | Parts


@dataclass(frozen=True)
class Call(Generic[T_co]):
    """One HTTP request and how to read its answer.

    Attributes:
        method: HTTP method.
        path: path below the server's address.
        decode: turns the answer into what the caller gets.
        query: query parameters.
        content: body.
        headers: headers beside those of the transport.
        read_seconds: how long the server may be silent.
        repeatable: doing it twice is the same as doing it once.
        keyed: it carries an idempotency key: a repeat may find the first one
            still under way, which is a conflict that passes.
        authenticated: it carries the caller's token.
    """

    method: str
    path: str
    decode: Callable[[Answer], T_co]
    query: Mapping[str, str] = field(default_factory=dict)
    content: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    read_seconds: float = READ_SECONDS
    repeatable: bool = False
    keyed: bool = False
    authenticated: bool = True

    @property
    def replayable(self) -> bool:
        """Whether the body can be sent again from its beginning."""
        return not isinstance(self.content, Stream | Parts) or self.content.replayable


def nothing(_: Answer) -> None:
    """Decode an answer that says no more than that all went well."""


def content(answer: Answer) -> bytes:
    """Return the body as it is."""
    return answer.content


def get(
    path: str,
    decode: Callable[[Answer], T],
    query: Mapping[str, str] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    read_seconds: float = READ_SECONDS,
) -> Call[T]:
    """Make a request that changes nothing."""
    return Call(
        "GET",
        path,
        decode,
        query=query or {},
        headers=headers or {},
        read_seconds=read_seconds,
        repeatable=True,
    )


def post(
    path: str,
    decode: Callable[[Answer], T],
    body: Mapping[str, object],
    *,
    method: str = "POST",
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    read_seconds: float = READ_SECONDS,
    repeatable: bool = False,
    authenticated: bool = True,
) -> Call[T]:
    """Make a request with a JSON body."""
    return Call(
        method,
        path,
        decode,
        query=query or {},
        content=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **(headers or {})},
        read_seconds=read_seconds,
        repeatable=repeatable,
        authenticated=authenticated,
    )


def once(call: Call[T], key: str | None) -> Call[T]:
    """Have a request take effect once for a key, so that it may be repeated.

    Args:
        call: a request that creates something.
        key: the same for whatever has to take effect once. Default: a new one.

    Raises:
        ValueError: no header can hold the key.
    """
    key = new_key() if key is None else key
    if not (0 < len(key) <= _MAX_KEY and key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(f"idempotency_key must be 1 to {_MAX_KEY} visible ASCII characters")
    headers = {**call.headers, "Idempotency-Key": key}
    return replace(call, headers=headers, repeatable=True, keyed=True)


def new_key() -> str:
    """Return an idempotency key that nobody used before."""
    return uuid.uuid4().hex


def segment(value: str, name: str) -> str:
    """Write an ID or a name as one segment of a path.

    Raises:
        ValueError: it is empty, so the path would be another one.
    """
    if not value:
        raise ValueError(f"the {name} is empty")
    # A dot segment would be resolved away on its way.
    return quote(value, safe=":@") if value.strip(".") else value.replace(".", "%2E")


def at(sandbox_id: str, path: Path | None = None, **options: str | None) -> dict[str, str]:
    """Return the query that names a Sandbox, a path in it, and what else is given."""
    query = {"sandbox_id": sandbox_id}
    if path is not None:
        query["path"] = os.fspath(path)
    query.update({name: value for name, value in options.items() if value is not None})
    return query


def given(**values: object) -> dict[str, object]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def true(value: bool) -> bool | None:
    """Leave out what is false, which is what absent means."""
    return True if value else None


def copied(mapping: Mapping[str, object] | None) -> dict[str, object] | None:
    """Return a mapping of any kind as one that JSON can write."""
    return None if mapping is None else dict(mapping)


def path_text(value: Path | None) -> str | None:
    """Return a path as text."""
    return None if value is None else os.fspath(value)


def seconds(value: float | None) -> float | None:
    """Write a whole number of seconds as one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def body_of(data: AsyncData) -> bytes | Stream:
    """Turn what a caller wants to write into a body; text becomes UTF-8.

    Raises:
        TypeError: data is none of the types that can be written.
    """
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    pieces = isinstance(data, Iterable | AsyncIterable) and not isinstance(data, Mapping)
    if not pieces and not callable(getattr(data, "read", None)):
        raise TypeError(f"cannot write a {type(data).__name__}; pass str, bytes, a file or pieces")
    return Stream(data)


def piece_of(piece: object) -> bytes:
    """Turn one piece of a body into bytes.

    Raises:
        TypeError: it is neither text nor bytes.
    """
    if isinstance(piece, str):
        return piece.encode()
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    raise TypeError(f"a piece to write must be str or bytes, not {type(piece).__name__}")
