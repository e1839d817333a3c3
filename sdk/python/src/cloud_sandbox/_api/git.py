"""Repositories of git."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cloud_sandbox.models import (
    GitBranch,
    GitBranches,
    GitCredentials,
    GitFile,
    GitHead,
    GitPull,
    GitPush,
    GitStatus,
)

from . import fields
from .call import READ_SECONDS, Answer, Call, Path, given, path_text, post, seconds, true

# What the server gives a call that goes to another host and has no timeout.
_REMOTE_SECONDS = 300.0


def clone(
    sandbox_id: str,
    url: str,
    path: Path | None,
    *,
    branch: str | None,
    depth: int | None,
    credentials: GitCredentials | None,
    user: str | None,
    timeout_seconds: float | None,
) -> Call[GitHead]:
    """Clone a repository."""
    body = given(
        sandbox_id=sandbox_id,
        url=url,
        path=path_text(path),
        branch=branch,
        depth=depth,
        credentials=_credentials(credentials),
        user=user,
        timeout_seconds=seconds(timeout_seconds),
    )
    return post("/api/v1/git/clone", _head, body, read_seconds=_silence(timeout_seconds))


def status(sandbox_id: str, path: Path, user: str | None) -> Call[GitStatus]:
    """Ask what has changed."""
    body = _in(sandbox_id, path, user)
    return post("/api/v1/git/status", _status, body, repeatable=True)


def branches(sandbox_id: str, path: Path, user: str | None) -> Call[GitBranches]:
    """Ask for the branches."""
    body = _in(sandbox_id, path, user)
    return post("/api/v1/git/branches", _branches, body, repeatable=True)


def checkout(
    sandbox_id: str, path: Path, ref: str, *, create: bool, start: str | None, user: str | None
) -> Call[GitHead]:
    """Change to a branch or commit."""
    body = {
        **_in(sandbox_id, path, user),
        **given(ref=ref, create=true(create), start=start),
    }
    return post("/api/v1/git/checkout", _head, body, read_seconds=_REMOTE_SECONDS)


def add(
    sandbox_id: str, path: Path, files: Sequence[Path] | None, user: str | None
) -> Call[GitStatus]:
    """Stage files, or every change."""
    what = {"all": True} if files is None else {"files": [os.fspath(file) for file in files]}
    body = {**_in(sandbox_id, path, user), **what}
    return post("/api/v1/git/add", _status, body, read_seconds=_REMOTE_SECONDS, repeatable=True)


def commit(
    sandbox_id: str,
    path: Path,
    message: str,
    *,
    author: tuple[str, str] | None,
    every_change: bool,
    allow_empty: bool,
    user: str | None,
) -> Call[GitHead]:
    """Commit what is staged."""
    body = {
        **_in(sandbox_id, path, user),
        **given(
            message=message,
            author=None if author is None else {"name": author[0], "email": author[1]},
            all=true(every_change),
            allow_empty=true(allow_empty),
        ),
    }
    return post("/api/v1/git/commit", _head, body, read_seconds=_REMOTE_SECONDS)


def pull(
    sandbox_id: str,
    path: Path,
    *,
    remote: str | None,
    branch: str | None,
    rebase: bool,
    credentials: GitCredentials | None,
    user: str | None,
    timeout_seconds: float | None,
) -> Call[GitPull]:
    """Fetch and merge."""
    body = {
        **_in(sandbox_id, path, user),
        **given(
            remote=remote,
            branch=branch,
            rebase=true(rebase),
            credentials=_credentials(credentials),
            timeout_seconds=seconds(timeout_seconds),
        ),
    }
    return post("/api/v1/git/pull", _pull, body, read_seconds=_silence(timeout_seconds))


def push(
    sandbox_id: str,
    path: Path,
    *,
    remote: str | None,
    branch: str | None,
    force: bool,
    set_upstream: bool,
    credentials: GitCredentials | None,
    user: str | None,
    timeout_seconds: float | None,
) -> Call[GitPush]:
    """Push a branch."""
    body = {
        **_in(sandbox_id, path, user),
        **given(
            remote=remote,
            branch=branch,
            force=true(force),
            set_upstream=true(set_upstream),
            credentials=_credentials(credentials),
            timeout_seconds=seconds(timeout_seconds),
        ),
    }
    return post("/api/v1/git/push", _push, body, read_seconds=_silence(timeout_seconds))


def _in(sandbox_id: str, path: Path, user: str | None) -> dict[str, object]:
    return given(sandbox_id=sandbox_id, path=os.fspath(path), user=user)


def _credentials(value: GitCredentials | None) -> Mapping[str, object] | None:
    if value is None:
        return None
    return given(username=value.username, password=value.password, host=value.host)


def _silence(timeout_seconds: float | None) -> float:
    return (_REMOTE_SECONDS if timeout_seconds is None else timeout_seconds) + READ_SECONDS


def _head(answer: Answer) -> GitHead:
    obj = answer.json()
    return GitHead(
        path=fields.text(obj, "path"),
        branch=fields.optional_text(obj, "branch"),
        commit=fields.optional_text(obj, "commit"),
    )


def _status(answer: Answer) -> GitStatus:
    obj = answer.json()
    return GitStatus(
        path=fields.text(obj, "path"),
        branch=fields.optional_text(obj, "branch"),
        commit=fields.optional_text(obj, "commit"),
        upstream=fields.optional_text(obj, "upstream"),
        ahead=fields.integer(obj, "ahead") or 0,
        behind=fields.integer(obj, "behind") or 0,
        clean=fields.flag(obj, "clean"),
        files=tuple(
            GitFile(
                path=fields.required_text(item, "path"),
                index=fields.text(item, "index"),
                worktree=fields.text(item, "worktree"),
                original_path=fields.optional_text(item, "original_path"),
            )
            for item in fields.objects(obj, "files")
        ),
        truncated=fields.flag(obj, "truncated"),
    )


def _branches(answer: Answer) -> GitBranches:
    obj = answer.json()
    return GitBranches(
        path=fields.text(obj, "path"),
        current=fields.optional_text(obj, "current"),
        branches=tuple(
            GitBranch(
                name=fields.required_text(item, "name"),
                commit=fields.text(item, "commit"),
                remote=fields.flag(item, "remote"),
                upstream=fields.optional_text(item, "upstream"),
            )
            for item in fields.objects(obj, "branches")
        ),
        truncated=fields.flag(obj, "truncated"),
    )


def _pull(answer: Answer) -> GitPull:
    obj = answer.json()
    return GitPull(
        path=fields.text(obj, "path"),
        branch=fields.optional_text(obj, "branch"),
        commit=fields.optional_text(obj, "commit"),
        updated=fields.flag(obj, "updated"),
    )


def _push(answer: Answer) -> GitPush:
    obj = answer.json()
    return GitPush(
        path=fields.text(obj, "path"),
        branch=fields.text(obj, "branch"),
        remote=fields.text(obj, "remote"),
        commit=fields.text(obj, "commit"),
    )
