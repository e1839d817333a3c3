"""Users of a tenant."""

from __future__ import annotations

from collections.abc import Mapping

from cloud_sandbox.models import UserInfo

from . import fields
from .call import Answer, Call, get, given, nothing, post, segment
from .records import record, records

_PATH = "/api/v1/users"


def page(asked: Mapping[str, str | None]) -> Call[tuple[list[UserInfo], str]]:
    """Ask for a page of users, and for the cursor of the next page."""
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
    return record(UserInfo, answer.json())


def _page(answer: Answer) -> tuple[list[UserInfo], str]:
    obj = answer.json()
    return records(UserInfo, obj, "users"), fields.text(obj, "next_cursor")
