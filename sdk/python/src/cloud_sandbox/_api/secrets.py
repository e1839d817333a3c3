"""Secrets."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_sandbox.models import SecretInfo

from . import fields
from .call import Answer, Call, get, given, nothing, once, post, segment

_PATH = "/api/v1/secrets"


def create(
    name: str, value: str, *, description: str | None, hosts: Sequence[str] | None
) -> Call[SecretInfo]:
    """Make a secret, once."""
    body = given(name=name, value=value, description=description, hosts=_hosts(hosts))
    return once(post(_PATH, _read, body), None)


def every() -> Call[list[SecretInfo]]:
    """Ask for all secrets."""
    return get(_PATH, _secrets)


def put(
    name: str, value: str, *, description: str | None, hosts: Sequence[str] | None
) -> Call[SecretInfo]:
    """Replace the value of a secret."""
    body = given(value=value, description=description, hosts=_hosts(hosts))
    return post(_path(name), _read, body, method="PUT", repeatable=True)


def delete(name: str) -> Call[None]:
    """Delete a secret."""
    return Call("DELETE", _path(name), nothing, repeatable=True)


def _hosts(hosts: Sequence[str] | None) -> list[str] | None:
    return None if hosts is None else list(hosts)


def _path(name: str) -> str:
    return f"{_PATH}/{segment(name, 'name of a secret')}"


def _read(answer: Answer) -> SecretInfo:
    return _secret(answer.json())


def _secrets(answer: Answer) -> list[SecretInfo]:
    return [_secret(item) for item in fields.objects(answer.json(), "secrets")]


def _secret(obj: fields.Object) -> SecretInfo:
    return SecretInfo(
        name=fields.required_text(obj, "name"),
        description=fields.text(obj, "description"),
        hosts=fields.strings(obj, "hosts"),
        created_at=fields.time(obj, "created_at"),
        updated_at=fields.time(obj, "updated_at"),
    )
