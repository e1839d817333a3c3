"""Users of a tenant."""

from __future__ import annotations

from collections.abc import Mapping

from cloud_sandbox.models import UserInfo

from . import fields
from .call import Answer, Call, get, given, nothing, post, segment

_PATH = "/api/v1/users"


def page(asked: Mapping[str, str | None]) -> Call[tuple[list[UserInfo], str]]:
    """Ask for a page of users, and where the next one begins."""
    return get(_PATH, _page, {name: value for name, value in asked.items() if value})


def look(user_id: str) -> Call[UserInfo]:
    """Ask for one user."""
    return get(_path(user_id), _read)


def add(user_id: str, *, role: str | None, name: str | None, email: str | None) -> Call[UserInfo]:
    """Invite a user. A repeat finds that there is one already."""
    return post(_PATH, _read, given(user_id=user_id, role=role, name=name, email=email))


def update(
    user_id: str, *, role: str | None, state: str | None, name: str | None, email: str | None
) -> Call[UserInfo]:
    """Change a user. Setting again what is set changes nothing."""
    body = given(role=role, state=state, name=name, email=email)
    return post(_path(user_id), _read, body, method="PATCH", repeatable=True)


def remove(user_id: str) -> Call[None]:
    """Remove a user."""
    return Call("DELETE", _path(user_id), nothing, repeatable=True)


def id_of(user: UserInfo | str) -> str:
    """Return what a user is asked for by."""
    return user if isinstance(user, str) else user.user_id


def _path(user_id: str) -> str:
    return f"{_PATH}/{segment(user_id, 'user ID')}"


def _read(answer: Answer) -> UserInfo:
    return _user(answer.json())


def _page(answer: Answer) -> tuple[list[UserInfo], str]:
    obj = answer.json()
    return [_user(item) for item in fields.objects(obj, "users")], fields.text(obj, "next_cursor")


def _user(obj: fields.Object) -> UserInfo:
    return UserInfo(
        user_id=fields.required_text(obj, "user_id"),
        name=fields.optional_text(obj, "name"),
        email=fields.optional_text(obj, "email"),
        role=fields.optional_text(obj, "role"),
        role_given=fields.flag(obj, "role_given"),
        state=fields.text(obj, "state"),
        source=fields.text(obj, "source"),
        issuer=fields.optional_text(obj, "issuer"),
        created_at=fields.time(obj, "created_at"),
        last_seen_at=fields.time(obj, "last_seen_at"),
    )
