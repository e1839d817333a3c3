"""API keys."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_sandbox.models import KeyInfo, PreviousSecret

from . import fields
from .call import Answer, Call, get, given, nothing, post, seconds, segment


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
    return post("/api/v1/keys", lambda answer: _key(answer.json()), body)


def every() -> Call[list[KeyInfo]]:
    """Ask for all keys."""
    return get("/api/v1/keys", _keys)


def rotate(key_id: str, *, overlap_seconds: float | None) -> Call[KeyInfo]:
    """Give a key another secret. It has no idempotency key: a repeat's answer lacks the secret."""
    body = given(overlap_seconds=overlap_seconds)
    path = f"/api/v1/keys/{segment(key_id, 'key ID')}/rotate"
    return post(path, lambda answer: _key(answer.json()), body)


def revoke(key_id: str) -> Call[None]:
    """Revoke a key."""
    return Call("DELETE", f"/api/v1/keys/{segment(key_id, 'key ID')}", nothing, repeatable=True)


def _keys(answer: Answer) -> list[KeyInfo]:
    return [_key(item) for item in fields.objects(answer.json(), "keys")]


def _key(obj: fields.Object) -> KeyInfo:
    return KeyInfo(
        key_id=fields.required_text(obj, "key_id"),
        name=fields.text(obj, "name"),
        role=fields.text(obj, "role"),
        scopes=fields.strings(obj, "scopes"),
        hint=fields.text(obj, "hint"),
        created_by=fields.optional_text(obj, "created_by"),
        key=fields.optional_text(obj, "key"),
        created_at=fields.time(obj, "created_at"),
        expires_at=fields.time(obj, "expires_at"),
        last_used_at=fields.time(obj, "last_used_at"),
        previous=_previous(fields.sub_object(obj, "previous")),
    )


def _previous(obj: fields.Object | None) -> PreviousSecret | None:
    if obj is None:
        return None
    return PreviousSecret(
        hint=fields.text(obj, "hint"),
        valid_until=fields.time(obj, "valid_until"),
        last_used_at=fields.time(obj, "last_used_at"),
    )
