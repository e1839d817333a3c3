"""API keys."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_sandbox.models import KeyInfo

from .call import Answer, Call, get, given, nothing, post, seconds, segment
from .records import record, records


def create(
    name: str,
    *,
    scopes: Sequence[str] | None,
    role: str | None,
    expires_in_seconds: float | None,
) -> Call[KeyInfo]:
    """Make a key. It has no idempotency key: a repeat's answer lacks the secret."""
    body = given(
        name=name,
        scopes=None if scopes is None else list(scopes),
        role=role,
        expires_in_seconds=seconds(expires_in_seconds),
    )
    return post("/api/v1/keys", lambda answer: record(KeyInfo, answer.json()), body)


def every() -> Call[list[KeyInfo]]:
    """Ask for all keys."""
    return get("/api/v1/keys", _keys)


def rotate(key_id: str, *, overlap_seconds: float | None) -> Call[KeyInfo]:
    """Give a key another secret. It has no idempotency key: a repeat's answer lacks the secret."""
    body = given(overlap_seconds=overlap_seconds)
    path = f"/api/v1/keys/{segment(key_id, 'key ID')}/rotate"
    return post(path, lambda answer: record(KeyInfo, answer.json()), body)


def revoke(key_id: str) -> Call[None]:
    """Revoke a key."""
    return Call("DELETE", f"/api/v1/keys/{segment(key_id, 'key ID')}", nothing, repeatable=True)


def _keys(answer: Answer) -> list[KeyInfo]:
    return records(KeyInfo, answer.json(), "keys")
