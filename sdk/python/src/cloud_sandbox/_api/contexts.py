"""Interpreters that keep their state."""

from __future__ import annotations

from cloud_sandbox.models import ContextInfo

from . import fields
from .call import Answer, Call, Path, at, get, given, nothing, once, path_text, post, segment


def create(
    sandbox_id: str, language: str, *, cwd: Path | None, user: str | None, key: str | None
) -> Call[ContextInfo]:
    """Ask for an interpreter beside the default one, one for each key."""
    body = given(sandbox_id=sandbox_id, language=language, cwd=path_text(cwd), user=user)
    return once(post("/api/v1/contexts", lambda answer: _context(answer.json()), body), key)


def every(sandbox_id: str) -> Call[list[ContextInfo]]:
    """Ask for all of a Sandbox."""
    return get("/api/v1/contexts", _contexts, at(sandbox_id))


def restart(sandbox_id: str, context_id: str) -> Call[ContextInfo]:
    """Give it a fresh interpreter."""
    path = f"{_path(context_id)}/restart"
    return post(path, lambda answer: _context(answer.json()), at(sandbox_id))


def interrupt(sandbox_id: str, context_id: str) -> Call[bool]:
    """End what runs in it."""
    return post(f"{_path(context_id)}/interrupt", _interrupted, at(sandbox_id))


def delete(sandbox_id: str, context_id: str) -> Call[None]:
    """End it."""
    return Call("DELETE", _path(context_id), nothing, query=at(sandbox_id), repeatable=True)


def _contexts(answer: Answer) -> list[ContextInfo]:
    return [_context(item) for item in fields.objects(answer.json(), "contexts")]


def _interrupted(answer: Answer) -> bool:
    return fields.flag(answer.json(), "interrupted")


def _context(obj: fields.Object) -> ContextInfo:
    return ContextInfo(
        context_id=fields.required_text(obj, "context_id"),
        language=fields.text(obj, "language"),
        cwd=fields.text(obj, "cwd"),
        user=fields.text(obj, "user"),
        default=fields.flag(obj, "default"),
        state=fields.text(obj, "state"),
        execution_count=fields.integer(obj, "execution_count") or 0,
    )


def _path(context_id: str) -> str:
    return f"/api/v1/contexts/{segment(context_id, 'context ID')}"
