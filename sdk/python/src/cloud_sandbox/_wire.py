"""The REST API as requests to send and answers to read, without any connection.

Every function makes a :class:`Request` or decodes an answer. Transports,
synchronous or not, only carry them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO
from urllib.parse import quote

from . import _fields
from ._sse import Event
from .errors import CloudSandboxError, ProtocolError, error_from
from .models import (
    Ended,
    Execution,
    ExecutionError,
    FileEntry,
    FileList,
    Resources,
    SandboxInfo,
    Truncated,
)

Path = str | os.PathLike[str]
Body = bytes | Iterable[bytes]
Data = str | bytes | bytearray | memoryview | IO[bytes] | IO[str] | Iterable[str | bytes]

# How long the server may be silent, in seconds, beyond what it was asked to do.
_READ_SECONDS = 60.0
# Creating may wait its turn behind others.
_CREATE_SECONDS = 180.0
# What the server gives code that came without a timeout.
DEFAULT_EXECUTE_SECONDS = 60.0
_CHUNK_BYTES = 64 << 10


@dataclass(frozen=True)
class Request:
    """One HTTP request.

    Attributes:
        method: HTTP method.
        path: path below the server's address.
        query: query parameters.
        content: body; an iterable of bytes is sent once, as it comes.
        headers: headers beside those of the transport.
        read_seconds: how long the server may be silent.
        repeatable: doing it twice is the same as doing it once.
        authenticated: it carries the caller's token.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    content: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    read_seconds: float = _READ_SECONDS
    repeatable: bool = False
    authenticated: bool = True

    @property
    def replayable(self) -> bool:
        """Whether the body can be sent again from its beginning."""
        return self.content is None or isinstance(self.content, bytes)


# Requests: who one is, and the life of a Sandbox.


def mint_token(user_id: str) -> Request:
    """Ask for a token, which a server in dev mode gives to anyone."""
    body = {"user_id": user_id, "role": "user"}
    return _post("/api/v1/auth/token", body, repeatable=True, authenticated=False)


def create_session(
    *,
    template: str | None,
    name: str | None,
    timeout_seconds: float | None,
    network: str | None,
    env: Mapping[str, str] | None,
    metadata: Mapping[str, str] | None,
    resources: Resources | Mapping[str, float] | None,
    user: str | None,
    cwd: Path | None,
) -> Request:
    """Ask for a Sandbox."""
    body = _given(
        template=template,
        name=name,
        timeout_seconds=_seconds(timeout_seconds),
        network=network,
        env=_copied(env),
        metadata=_copied(metadata),
        resources=_resources(resources),
        user=user,
        cwd=_path(cwd),
    )
    return _post("/api/v1/sessions", body, read_seconds=_CREATE_SECONDS)


def list_sessions(
    limit: int | None,
    cursor: str | None,
    states: Sequence[str] | None,
    metadata: Mapping[str, str] | None,
) -> Request:
    """Ask for one page of the caller's Sandboxes."""
    query = {k: str(v) for k, v in _given(limit=limit, cursor=cursor).items()}
    if states:
        query["state"] = ",".join(states)
    query.update({f"metadata[{key}]": value for key, value in (metadata or {}).items()})
    return _get("/api/v1/sessions", query)


def get_session(sandbox_id: str) -> Request:
    """Ask what a Sandbox is now."""
    return _get(_session_path(sandbox_id))


def delete_session(sandbox_id: str) -> Request:
    """End a Sandbox."""
    return Request("DELETE", _session_path(sandbox_id), repeatable=True)


def set_timeout(sandbox_id: str, seconds: float) -> Request:
    """Move the deadline of a Sandbox."""
    body = {"timeout_seconds": _seconds(seconds)}
    return _post(f"{_session_path(sandbox_id)}/timeout", body, repeatable=True)


# Requests: what runs in it.


def execute(
    sandbox_id: str,
    code: str,
    *,
    language: str,
    timeout_seconds: float | None,
    env: Mapping[str, str] | None,
    cwd: Path | None,
    stdin: str | None,
    user: str | None,
    max_output_bytes: int | None,
    stream: bool,
) -> Request:
    """Run code; with ``stream``, the answer is a stream of events."""
    body = _given(
        sandbox_id=sandbox_id,
        code=code,
        language=language,
        timeout_seconds=_seconds(timeout_seconds),
        env=_copied(env),
        cwd=_path(cwd),
        stdin=stdin,
        user=user,
        max_output_bytes=max_output_bytes,
        stream=True if stream else None,
    )
    allowed = DEFAULT_EXECUTE_SECONDS if timeout_seconds is None else timeout_seconds
    return _post(
        "/api/v1/execute",
        body,
        read_seconds=allowed + _READ_SECONDS,
        headers={"Accept": "text/event-stream" if stream else "application/json"},
    )


# Requests: its files.


def read_file(sandbox_id: str, path: Path) -> Request:
    """Ask for the bytes of a file."""
    return _get("/api/v1/files", _at(sandbox_id, path))


def write_file(sandbox_id: str, path: Path, data: Data) -> Request:
    """Write a file."""
    return Request(
        "PUT",
        "/api/v1/files",
        query=_at(sandbox_id, path),
        content=body_of(data),
        headers={"Content-Type": "application/octet-stream"},
        repeatable=True,
    )


def delete_file(sandbox_id: str, path: Path, *, recursive: bool) -> Request:
    """Delete a file or a folder."""
    query = _at(sandbox_id, path)
    if recursive:
        query["recursive"] = "true"
    return Request("DELETE", "/api/v1/files", query=query, repeatable=True)


def list_files(sandbox_id: str, path: Path, depth: int) -> Request:
    """Ask what is in a folder."""
    query = _at(sandbox_id, path)
    if depth != 1:
        query["depth"] = str(depth)
    return _get("/api/v1/files/list", query)


def stat_file(sandbox_id: str, path: Path) -> Request:
    """Ask about one file."""
    return _get("/api/v1/files/stat", _at(sandbox_id, path))


def make_dir(sandbox_id: str, path: Path) -> Request:
    """Make a folder."""
    return _post("/api/v1/files/mkdir", _at(sandbox_id, path))


def move_file(sandbox_id: str, source: Path, destination: Path) -> Request:
    """Move a file or a folder."""
    body = {
        "sandbox_id": sandbox_id,
        "source": os.fspath(source),
        "destination": os.fspath(destination),
    }
    return _post("/api/v1/files/move", body)


# Answers.


def decode_error(status_code: int, headers: Mapping[str, str], content: bytes) -> CloudSandboxError:
    """Make the exception for an answer that is an error."""
    if status_code < 400:
        return ProtocolError(f"the server answered with HTTP {status_code}")
    try:
        error = _fields.sub_object(_fields.parse_object(content), "error") or {}
        code, message = _fields.text(error, "code"), _fields.text(error, "message")
        advice = _fields.number(error, "retry_after_seconds")
    except ProtocolError:  # a proxy's page, say
        code, message, advice = "", "", None
    if advice is None:
        advice = _retry_after(headers.get("Retry-After"))
    return error_from(
        code,
        message or f"the server answered with HTTP {status_code}",
        status_code=status_code,
        retry_after=advice,
        request_id=headers.get("X-Request-Id"),
    )


def decode_token(content: bytes) -> tuple[str, float]:
    """Return a token and its life in seconds."""
    obj = _fields.parse_object(content)
    seconds = _fields.number(obj, "expires_in")
    return _fields.required_text(obj, "access_token"), 0.0 if seconds is None else seconds


def decode_session(content: bytes) -> SandboxInfo:
    """Return the Sandbox that an answer describes."""
    return _session(_fields.parse_object(content))


def decode_sessions(content: bytes) -> tuple[list[SandboxInfo], str]:
    """Return one page of Sandboxes and the cursor of the next, empty at the end."""
    obj = _fields.parse_object(content)
    sessions = [_session(item) for item in _fields.objects(obj, "sessions")]
    return sessions, _fields.text(obj, "next_cursor")


def decode_execution(content: bytes | str) -> Execution:
    """Return what became of code."""
    obj = _fields.parse_object(content)
    error = _fields.sub_object(obj, "error")
    cut = _fields.sub_object(obj, "truncated") or {}
    return Execution(
        status=_fields.required_text(obj, "status"),
        stdout=_fields.text(obj, "stdout"),
        stderr=_fields.text(obj, "stderr"),
        exit_code=_fields.integer(obj, "exit_code"),
        results=tuple(_fields.objects(obj, "results")),
        error=None
        if error is None
        else ExecutionError(
            name=_fields.text(error, "name"),
            message=_fields.text(error, "message"),
            traceback=_fields.text(error, "traceback"),
        ),
        duration_ms=_fields.number(obj, "duration_ms") or 0,
        truncated=Truncated(
            stdout_bytes_dropped=_fields.integer(cut, "stdout_bytes_dropped") or 0,
            stderr_bytes_dropped=_fields.integer(cut, "stderr_bytes_dropped") or 0,
        ),
    )


def decode_output(event: Event) -> str:
    """Return the text of a ``stdout`` or ``stderr`` event."""
    return _fields.text(_fields.parse_object(event.data), "text")


def decode_error_event(event: Event) -> CloudSandboxError:
    """Make the exception for a stream that ends with an ``error`` event."""
    error = _fields.sub_object(_fields.parse_object(event.data), "error") or {}
    return error_from(
        _fields.text(error, "code"),
        _fields.text(error, "message") or "the execution broke off",
        status_code=None,
        retry_after=_fields.number(error, "retry_after_seconds"),
    )


def decode_entry(content: bytes) -> FileEntry:
    """Return the file that an answer describes."""
    return _entry(_fields.parse_object(content))


def decode_entries(content: bytes) -> FileList:
    """Return the files that an answer lists."""
    obj = _fields.parse_object(content)
    return FileList(
        (_entry(item) for item in _fields.objects(obj, "entries")),
        truncated=obj.get("truncated") is True,
    )


def body_of(data: Data) -> Body:
    """Turn what a caller wants to write into a body; text becomes UTF-8.

    Raises:
        TypeError: data is none of the types that can be written.
    """
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    read = getattr(data, "read", None)
    if callable(read):
        return _pieces_of_file(read)
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise TypeError(f"cannot write a {type(data).__name__}; pass str, bytes, a file or pieces")
    return (_piece(piece) for piece in data)


def _pieces_of_file(read: Callable[[int], object]) -> Iterator[bytes]:
    while piece := read(_CHUNK_BYTES):
        yield _piece(piece)


def _piece(piece: object) -> bytes:
    if isinstance(piece, str):
        return piece.encode()
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    raise TypeError(f"a piece to write must be str or bytes, not {type(piece).__name__}")


def _session(obj: _fields.Object) -> SandboxInfo:
    limits = _fields.sub_object(obj, "shape") or {}
    ended = _fields.sub_object(obj, "ended")
    return SandboxInfo(
        sandbox_id=_fields.required_text(obj, "sandbox_id"),
        state=_fields.text(obj, "state"),
        name=_fields.text(obj, "name"),
        template=_fields.text(obj, "template"),
        engine=_fields.text(obj, "engine"),
        shape=Resources(
            cpus=_fields.number(limits, "cpus"),
            memory_mb=_fields.integer(limits, "memory_mb"),
            disk_mb=_fields.integer(limits, "disk_mb"),
            pids=_fields.integer(limits, "pids"),
        ),
        network=_fields.text(obj, "network"),
        metadata=_fields.texts(obj, "metadata"),
        timeout_seconds=_fields.number(obj, "timeout_seconds"),
        created_at=_fields.time(obj, "created_at"),
        started_at=_fields.time(obj, "started_at"),
        deadline=_fields.time(obj, "deadline"),
        ended=None
        if ended is None
        else Ended(cause=_fields.text(ended, "cause"), at=_fields.time(ended, "at")),
    )


def _entry(obj: _fields.Object) -> FileEntry:
    target = _fields.text(obj, "symlink_target")
    return FileEntry(
        name=_fields.text(obj, "name"),
        path=_fields.required_text(obj, "path"),
        type=_fields.text(obj, "type"),
        size_bytes=_fields.integer(obj, "size_bytes") or 0,
        mode=_fields.text(obj, "mode"),
        owner=_fields.text(obj, "owner"),
        group=_fields.text(obj, "group"),
        modified_at=_fields.time(obj, "modified_at"),
        symlink_target=target or None,
    )


def _retry_after(value: str | None) -> float | None:
    """Read a Retry-After header in seconds; a date, which we never send, is no advice."""
    return float(value) if value and value.isdecimal() and value.isascii() else None


def _get(path: str, query: Mapping[str, str] | None = None) -> Request:
    return Request("GET", path, query=query or {}, repeatable=True)


def _post(
    path: str,
    body: Mapping[str, object],
    *,
    headers: Mapping[str, str] | None = None,
    read_seconds: float = _READ_SECONDS,
    repeatable: bool = False,
    authenticated: bool = True,
) -> Request:
    return Request(
        "POST",
        path,
        content=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **(headers or {})},
        read_seconds=read_seconds,
        repeatable=repeatable,
        authenticated=authenticated,
    )


def _session_path(sandbox_id: str) -> str:
    if not sandbox_id:
        raise ValueError("the sandbox ID is empty")
    return f"/api/v1/sessions/{quote(sandbox_id, safe='')}"


def _at(sandbox_id: str, path: Path) -> dict[str, str]:
    return {"sandbox_id": sandbox_id, "path": os.fspath(path)}


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _copied(mapping: Mapping[str, object] | None) -> dict[str, object] | None:
    return None if mapping is None else dict(mapping)


def _resources(value: Resources | Mapping[str, float] | None) -> dict[str, object] | None:
    if not isinstance(value, Resources):
        return _copied(value)
    return _given(
        cpus=value.cpus, memory_mb=value.memory_mb, disk_mb=value.disk_mb, pids=value.pids
    )


def _path(value: Path | None) -> str | None:
    return None if value is None else os.fspath(value)


def _seconds(value: float | None) -> float | None:
    """Write a whole number of seconds as one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
