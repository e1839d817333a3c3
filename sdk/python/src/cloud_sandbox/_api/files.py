"""The files of a Sandbox."""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Mapping, Sequence

from cloud_sandbox.models import (
    ArchiveFormat,
    BatchResult,
    CopyResult,
    ExtractResult,
    FileChange,
    FileChanges,
    FileEntry,
    FileList,
    FileOperation,
    FileOutcome,
    ReplacedFile,
    ReplaceResult,
    SearchMatch,
    SearchResult,
    SignedURL,
)

from . import failures, fields
from .call import (
    Answer,
    AsyncData,
    Call,
    Parts,
    Path,
    Stream,
    at,
    body_of,
    content,
    get,
    given,
    nothing,
    path_text,
    post,
    seconds,
    true,
)
from .sse import Event

# A search ends after half a minute by itself; copies and archives of many files take
# their time before the first byte comes.
_SLOW_SECONDS = 300.0

_BINARY = {"Content-Type": "application/octet-stream"}


def read(sandbox_id: str, path: Path, start: int = 0, length: int | None = None) -> Call[bytes]:
    """Ask for the bytes of a file, or for a range of them."""
    return get("/api/v1/files", content, at(sandbox_id, path), headers=_range_header(start, length))


def _range_header(start: int, length: int | None) -> dict[str, str]:
    if length is not None and length < 1:
        raise ValueError("length must be at least 1")
    if start < 0:
        if length is not None:
            raise ValueError("a start from the end goes to the end: leave length out")
        return {"Range": f"bytes={start}"}
    if start == 0 and length is None:
        return {}
    return {"Range": f"bytes={start}-" if length is None else f"bytes={start}-{start + length - 1}"}


def write(sandbox_id: str, path: Path, data: AsyncData) -> Call[FileEntry]:
    """Write a file."""
    return Call(
        "PUT",
        "/api/v1/files",
        _one,
        query=at(sandbox_id, path),
        content=body_of(data),
        headers=_BINARY,
        read_seconds=_SLOW_SECONDS,
        repeatable=True,
    )


def delete(sandbox_id: str, path: Path, *, recursive: bool) -> Call[None]:
    """Delete a file or a folder."""
    query = at(sandbox_id, path, recursive="true" if recursive else None)
    return Call("DELETE", "/api/v1/files", nothing, query=query, repeatable=True)


def every(sandbox_id: str, path: Path, depth: int) -> Call[FileList]:
    """Ask what is in a folder."""
    query = at(sandbox_id, path, depth=None if depth == 1 else str(depth))
    return get("/api/v1/files/list", _list, query)


def stat(sandbox_id: str, path: Path) -> Call[FileEntry]:
    """Ask about one file."""
    return get("/api/v1/files/stat", _one, at(sandbox_id, path))


def make_dir(sandbox_id: str, path: Path) -> Call[FileEntry]:
    """Make a folder."""
    return post("/api/v1/files/mkdir", _one, at(sandbox_id, path))


def move(sandbox_id: str, source: Path, destination: Path) -> Call[FileEntry]:
    """Move a file or a folder."""
    return post("/api/v1/files/move", _one, _from_to(sandbox_id, source, destination))


def copy(
    sandbox_id: str,
    source: Path,
    destination: Path,
    *,
    recursive: bool,
    overwrite: bool,
    user: str | None,
) -> Call[CopyResult]:
    """Copy a file or a folder."""
    options = given(recursive=true(recursive), overwrite=true(overwrite), user=user)
    body = {**_from_to(sandbox_id, source, destination), **options}
    return post("/api/v1/files/copy", _copied, body, read_seconds=_SLOW_SECONDS)


def chmod(
    sandbox_id: str, path: Path, mode: int | str, *, recursive: bool, user: str | None
) -> Call[int]:
    """Change permissions."""
    body = given(
        sandbox_id=sandbox_id,
        path=os.fspath(path),
        mode=_octal(mode),
        recursive=true(recursive),
        user=user,
    )
    return post("/api/v1/files/chmod", _changed, body, repeatable=True)


def _octal(mode: int | str) -> str:
    return mode if isinstance(mode, str) else f"{mode:04o}"


def search(
    sandbox_id: str,
    pattern: str | None,
    path: Path | None,
    *,
    literal: bool,
    ignore_case: bool,
    word: bool,
    files_only: bool,
    globs: Sequence[str] | None,
    hidden: bool,
    no_ignore: bool,
    max_results: int | None,
    context_lines: int | None,
    user: str | None,
) -> Call[SearchResult]:
    """Look for lines in files, or for files by name."""
    body = given(
        sandbox_id=sandbox_id,
        path=path_text(path),
        pattern=pattern,
        literal=true(literal),
        ignore_case=true(ignore_case),
        word=true(word),
        files_only=true(files_only),
        globs=None if globs is None else list(globs),
        hidden=true(hidden),
        no_ignore=true(no_ignore),
        max_results=max_results,
        context_lines=context_lines,
        user=user,
    )
    return post("/api/v1/files/search", _found, body, read_seconds=_SLOW_SECONDS, repeatable=True)


def replace(
    sandbox_id: str,
    path: Path,
    pattern: str,
    replacement: str,
    *,
    regex: bool,
    ignore_case: bool,
    globs: Sequence[str] | None,
    hidden: bool,
    no_ignore: bool,
    expected_count: int | None,
    dry_run: bool,
    user: str | None,
) -> Call[ReplaceResult]:
    """Put one text in the place of another."""
    body = given(
        sandbox_id=sandbox_id,
        path=os.fspath(path),
        pattern=pattern,
        replacement=replacement,
        regex=true(regex),
        ignore_case=true(ignore_case),
        globs=None if globs is None else list(globs),
        hidden=true(hidden),
        no_ignore=true(no_ignore),
        expected_count=expected_count,
        dry_run=true(dry_run),
        user=user,
    )
    return post("/api/v1/files/replace", _replaced, body, read_seconds=_SLOW_SECONDS)


def batch(
    sandbox_id: str, operations: Sequence[FileOperation], *, stop_on_error: bool
) -> Call[BatchResult]:
    """Do several things in one request."""
    body = given(
        sandbox_id=sandbox_id,
        operations=[_operation(operation) for operation in operations],
        stop_on_error=true(stop_on_error),
    )
    return post("/api/v1/files/batch", _done, body, read_seconds=_SLOW_SECONDS)


def _operation(operation: FileOperation) -> dict[str, object]:
    text = operation.content if isinstance(operation.content, str) else None
    raw = operation.content if isinstance(operation.content, bytes) else None
    return given(
        op=operation.op,
        path=path_text(operation.path),
        source=path_text(operation.source),
        destination=path_text(operation.destination),
        content=text,
        content_base64=None if raw is None else base64.b64encode(raw).decode(),
        mode=None if operation.mode is None else _octal(operation.mode),
        max_bytes=operation.max_bytes,
        depth=operation.depth,
        recursive=true(operation.recursive),
        overwrite=true(operation.overwrite),
        user=operation.user,
    )


def write_many(
    sandbox_id: str, path: Path, files: Mapping[str, AsyncData]
) -> Call[list[FileEntry]]:
    """Write files below a folder, in one form.

    Raises:
        ValueError: a name cannot be written in a form.
    """
    mark = uuid.uuid4().hex
    parts: list[bytes | Stream] = []
    for name, data in files.items():
        parts.append(_part_header(mark, name))
        parts.append(body_of(data))
        parts.append(b"\r\n")
    parts.append(f"--{mark}--\r\n".encode())
    return Call(
        "POST",
        "/api/v1/files",
        _entries,
        query=at(sandbox_id, path),
        content=Parts(parts),
        headers={"Content-Type": f"multipart/form-data; boundary={mark}"},
        read_seconds=_SLOW_SECONDS,
        repeatable=True,
    )


def _part_header(mark: str, name: str) -> bytes:
    if any(char in name for char in "\r\n\0"):
        raise ValueError(f"a file's name must hold no line end and no NUL: {name!r}")
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return (
        f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{quoted}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()


def changes(
    sandbox_id: str, path: Path, *, since: str | None, recursive: bool, user: str | None
) -> Call[FileChanges]:
    """Ask what has changed."""
    query = _watched(sandbox_id, path, since, recursive, user)
    return get("/api/v1/files/changes", _changes, query)


def watch(
    sandbox_id: str, path: Path, *, since: str | None, recursive: bool, user: str | None
) -> Call[None]:
    """Follow changes, as events."""
    query = _watched(sandbox_id, path, since, recursive, user)
    return get("/api/v1/files/watch", nothing, query, headers={"Accept": "text/event-stream"})


def _watched(
    sandbox_id: str, path: Path, since: str | None, recursive: bool, user: str | None
) -> dict[str, str]:
    return at(sandbox_id, path, since=since, recursive="true" if recursive else None, user=user)


def change_of(event: Event) -> tuple[FileChange, bool]:
    """Decode an event of a watch: where one is now, and whether to tell of it."""
    obj = fields.parse_object(event.data)
    kind, path = fields.text(obj, "type"), fields.text(obj, "path")
    tells = True
    if event.name in ("start", "reset"):
        kind, tells = "reset", event.name == "reset" or fields.flag(obj, "reset")
    return FileChange(kind, path, fields.text(obj, "cursor")), tells


def sign(
    sandbox_id: str, path: Path, method: str, expires_in_seconds: float | None
) -> Call[SignedURL]:
    """Ask for a URL that needs no token."""
    body = given(
        sandbox_id=sandbox_id,
        path=os.fspath(path),
        method=method,
        expires_in_seconds=seconds(expires_in_seconds),
    )
    return post("/api/v1/files/sign", _signed, body, repeatable=True)


def rotate_signing_key() -> Call[None]:
    """Revoke all signed URLs."""
    return post("/api/v1/files/sign/rotate", nothing, {}, repeatable=True)


def _signed(answer: Answer) -> SignedURL:
    obj = answer.json()
    return SignedURL(
        url=fields.required_text(obj, "url"),
        method=fields.text(obj, "method"),
        expires_at=fields.time(obj, "expires_at"),
    )


def read_archive(
    sandbox_id: str, path: Path, format: ArchiveFormat | None, user: str | None
) -> Call[bytes]:
    """Ask for a folder as an archive."""
    query = at(sandbox_id, path, format=format, user=user)
    return get("/api/v1/files/archive", content, query, read_seconds=_SLOW_SECONDS)


def write_archive(
    sandbox_id: str, path: Path, data: AsyncData, format: ArchiveFormat | None, user: str | None
) -> Call[ExtractResult]:
    """Unpack an archive into a folder."""
    return Call(
        "PUT",
        "/api/v1/files/archive",
        _extracted,
        query=at(sandbox_id, path, format=format, user=user),
        content=body_of(data),
        headers=_BINARY,
        read_seconds=_SLOW_SECONDS,
        repeatable=True,
    )


def _from_to(sandbox_id: str, source: Path, destination: Path) -> dict[str, str]:
    return {
        "sandbox_id": sandbox_id,
        "source": os.fspath(source),
        "destination": os.fspath(destination),
    }


def _one(answer: Answer) -> FileEntry:
    return entry(answer.json())


def _list(answer: Answer) -> FileList:
    obj = answer.json()
    return FileList(
        (entry(item) for item in fields.objects(obj, "entries")),
        truncated=fields.flag(obj, "truncated"),
    )


def _copied(answer: Answer) -> CopyResult:
    obj = answer.json()
    return CopyResult(
        entry=entry(fields.sub_object(obj, "entry") or {}),
        files=fields.integer(obj, "files") or 0,
        bytes=fields.integer(obj, "bytes") or 0,
        files_skipped=fields.integer(obj, "files_skipped") or 0,
    )


def _changed(answer: Answer) -> int:
    return fields.integer(answer.json(), "changed") or 0


def _found(answer: Answer) -> SearchResult:
    obj = answer.json()
    return SearchResult(
        matches=tuple(_match(item) for item in fields.objects(obj, "matches")),
        files_searched=fields.integer(obj, "files_searched") or 0,
        truncated=fields.flag(obj, "truncated"),
    )


def _match(obj: fields.Object) -> SearchMatch:
    return SearchMatch(
        path=fields.required_text(obj, "path"),
        line=fields.integer(obj, "line"),
        text=fields.text(obj, "text"),
        cut=fields.flag(obj, "cut"),
        spans=tuple(
            (fields.integer(span, "start") or 0, fields.integer(span, "end") or 0)
            for span in fields.objects(obj, "spans")
        ),
        before=fields.strings(obj, "before"),
        after=fields.strings(obj, "after"),
    )


def _replaced(answer: Answer) -> ReplaceResult:
    obj = answer.json()
    return ReplaceResult(
        count=fields.integer(obj, "count") or 0,
        files=tuple(
            ReplacedFile(
                path=fields.required_text(item, "path"),
                count=fields.integer(item, "count") or 0,
                lines=fields.integers(item, "lines"),
            )
            for item in fields.objects(obj, "files")
        ),
        files_too_large=fields.integer(obj, "files_too_large") or 0,
        dry_run=fields.flag(obj, "dry_run"),
    )


def _done(answer: Answer) -> BatchResult:
    obj = answer.json()
    return BatchResult(
        results=tuple(_outcome(item) for item in fields.objects(obj, "results")),
        failed=fields.integer(obj, "failed") or 0,
    )


def _outcome(obj: fields.Object) -> FileOutcome:
    found, error = fields.sub_object(obj, "entry"), fields.sub_object(obj, "error")
    text = fields.optional_text(obj, "content")
    return FileOutcome(
        status=fields.required_text(obj, "status"),
        entry=None if found is None else entry(found),
        entries=tuple(entry(item) for item in fields.objects(obj, "entries")),
        content=fields.decoded(obj, "content_base64") if text is None else text.encode(),
        truncated=fields.flag(obj, "truncated"),
        changed=fields.integer(obj, "changed") or 0,
        error=None if error is None else failures.of_object(error),
    )


def _entries(answer: Answer) -> list[FileEntry]:
    return [entry(item) for item in fields.objects(answer.json(), "entries")]


def _changes(answer: Answer) -> FileChanges:
    obj = answer.json()
    return FileChanges(
        changes=tuple(
            FileChange(
                type=fields.text(item, "type"),
                path=fields.text(item, "path"),
                cursor=fields.text(item, "cursor"),
            )
            for item in fields.objects(obj, "changes")
        ),
        cursor=fields.text(obj, "cursor"),
        reset=fields.flag(obj, "reset"),
    )


def _extracted(answer: Answer) -> ExtractResult:
    obj = answer.json()
    return ExtractResult(
        path=fields.text(obj, "path"),
        files=fields.integer(obj, "files") or 0,
        directories=fields.integer(obj, "directories") or 0,
        links=fields.integer(obj, "links") or 0,
        skipped=fields.integer(obj, "skipped") or 0,
        bytes=fields.integer(obj, "bytes") or 0,
    )


def entry(obj: fields.Object) -> FileEntry:
    """Decode one file, folder or link."""
    return FileEntry(
        name=fields.text(obj, "name"),
        path=fields.required_text(obj, "path"),
        type=fields.text(obj, "type"),
        size_bytes=fields.integer(obj, "size_bytes") or 0,
        mode=fields.text(obj, "mode"),
        owner=fields.text(obj, "owner"),
        group=fields.text(obj, "group"),
        modified_at=fields.time(obj, "modified_at"),
        symlink_target=fields.text(obj, "symlink_target") or None,
    )
