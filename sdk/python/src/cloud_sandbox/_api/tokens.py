"""Tokens."""

from __future__ import annotations

from . import fields
from .call import Answer, Call, post


def mint(user_id: str) -> Call[tuple[str, float]]:
    """Ask for a token and its life in seconds; in dev mode anyone gets one."""
    return post(
        "/api/v1/auth/token",
        _token,
        {"user_id": user_id, "role": "user"},
        repeatable=True,
        authenticated=False,
    )


def _token(answer: Answer) -> tuple[str, float]:
    obj = answer.json()
    return fields.required_text(obj, "access_token"), fields.number(obj, "expires_in") or 0.0
