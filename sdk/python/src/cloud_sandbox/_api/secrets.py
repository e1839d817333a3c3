"""Secrets."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_sandbox.models import SecretInfo

from .call import Answer, Call, get, given, nothing, once, post, segment
from .records import record, records

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
    return record(SecretInfo, answer.json())


def _secrets(answer: Answer) -> list[SecretInfo]:
    return records(SecretInfo, answer.json(), "secrets")
