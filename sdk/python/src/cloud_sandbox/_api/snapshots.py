"""Saving a Sandbox, and what can start from what was saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cloud_sandbox.errors import CloudSandboxError
from cloud_sandbox.models import SandboxInfo, SnapshotInfo

from . import failures, fields, sessions
from .call import (
    Answer,
    AsyncData,
    Call,
    body_of,
    content,
    copied,
    get,
    given,
    nothing,
    once,
    post,
    seconds,
    segment,
)
from .records import record, records
from .sessions import START_SECONDS, path_of

# Gathering a state from the disk, or putting it there, takes its time.
_FILE_SECONDS = 600.0


def pause(sandbox_id: str, *, memory: bool) -> Call[SandboxInfo]:
    """Save a Sandbox and let go of what it runs on."""
    body = {} if memory else {"memory": False}
    # Pausing again what is paused changes nothing.
    path = f"{path_of(sandbox_id)}/pause"
    return post(path, sessions.one, body, read_seconds=START_SECONDS, repeatable=True)


def resume(sandbox_id: str, *, memory: bool) -> Call[SandboxInfo]:
    """Let a paused Sandbox go on."""
    body = {} if memory else {"memory": False}
    path = f"{path_of(sandbox_id)}/resume"
    return post(path, sessions.one, body, read_seconds=START_SECONDS, repeatable=True)


def fork(
    sandbox_id: str,
    *,
    count: int,
    name: str | None,
    timeout_seconds: float | None,
    idle_timeout_seconds: float | None,
    on_timeout: str | None,
    auto_resume: bool | None,
    network: str | Mapping[str, object] | None,
    secrets: Sequence[Mapping[str, str]] | None,
    keep_secrets: bool,
    metadata: Mapping[str, str | None] | None,
    env: Mapping[str, str | None] | None,
    key: str | None,
) -> Call[list[SandboxInfo | CloudSandboxError]]:
    """Ask for copies of a Sandbox, once for each key: of each, what became of it."""
    body = given(
        count=count,
        name=name,
        timeout_seconds=seconds(timeout_seconds),
        idle_timeout_seconds=seconds(idle_timeout_seconds),
        on_timeout=on_timeout,
        auto_resume=auto_resume,
        network=network,
        secrets=sessions.listed(secrets),
        keep_secrets=True if keep_secrets else None,
        metadata=copied(metadata),
        env=copied(env),
    )
    path = f"{path_of(sandbox_id)}/fork"
    return once(post(path, _forks, body, read_seconds=START_SECONDS), key)


def take(sandbox_id: str, *, name: str | None, memory: bool, key: str | None) -> Call[SnapshotInfo]:
    """Save a Sandbox that goes on, once for each key."""
    body = given(name=name, memory=None if memory else False)
    path = f"{path_of(sandbox_id)}/snapshots"
    return once(post(path, _one, body, read_seconds=START_SECONDS), key)


def history(sandbox_id: str) -> Call[list[SnapshotInfo]]:
    """Ask what a Sandbox was saved in."""
    return get(f"{path_of(sandbox_id)}/snapshots", lambda answer: _page(answer)[0])


def rollback(sandbox_id: str, snapshot: str) -> Call[SandboxInfo]:
    """Have a Sandbox go on from a Snapshot of its own."""
    body = {"snapshot_id": snapshot}
    path = f"{path_of(sandbox_id)}/rollback"
    return post(path, sessions.one, body, read_seconds=START_SECONDS)


def page(
    limit: int | None, cursor: str | None, sandbox_id: str | None
) -> Call[tuple[Sequence[SnapshotInfo], str]]:
    """Ask for one page of the caller's Snapshots, and the cursor of the next."""
    query = given(limit=limit, cursor=cursor, session_id=sandbox_id)
    return get("/api/v1/snapshots", _page, {name: str(value) for name, value in query.items()})


def look(snapshot_id: str) -> Call[SnapshotInfo]:
    """Ask for one Snapshot."""
    return get(_path(snapshot_id), _one)


def delete(snapshot_id: str) -> Call[None]:
    """Delete a Snapshot."""
    return Call("DELETE", _path(snapshot_id), nothing, repeatable=True)


def export(snapshot_id: str, with_template: bool) -> Call[bytes]:
    """Ask for the file of a Snapshot."""
    query = {"with_template": "true"} if with_template else {}
    return get(f"{_path(snapshot_id)}/export", content, query, read_seconds=_FILE_SECONDS)


def from_file(file: AsyncData, name: str | None, key: str | None) -> Call[SnapshotInfo]:
    """Make a Snapshot of a file."""
    call = Call(
        "POST",
        "/api/v1/snapshots/import",
        _one,
        query={} if name is None else {"name": name},
        content=body_of(file),
        headers={"Content-Type": "application/octet-stream"},
        read_seconds=_FILE_SECONDS,
    )
    # The server keeps the whole body of a request with a key, so files go without.
    return call if key is None else once(call, key)


def _path(snapshot_id: str) -> str:
    return f"/api/v1/snapshots/{segment(snapshot_id, 'snapshot ID')}"


def _forks(answer: Answer) -> list[SandboxInfo | CloudSandboxError]:
    return [_fork(item) for item in fields.objects(answer.json(), "forks")]


def _fork(obj: fields.Object) -> SandboxInfo | CloudSandboxError:
    error = fields.sub_object(obj, "error")
    return sessions.session(obj) if error is None else failures.of_object(error)


def _page(answer: Answer) -> tuple[list[SnapshotInfo], str]:
    obj = answer.json()
    return records(SnapshotInfo, obj, "snapshots"), fields.text(obj, "next_cursor")


def _one(answer: Answer) -> SnapshotInfo:
    return record(SnapshotInfo, answer.json())
