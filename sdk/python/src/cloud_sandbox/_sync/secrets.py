# Generated from _async by scripts/generate_sync.py: edit it there.
"""Secrets."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloud_sandbox._api import secrets
from cloud_sandbox.models import SecretInfo

if TYPE_CHECKING:
    from .client import Client

__all__ = ["Secrets"]


class Secrets:
    """Your secrets: ``client.secrets``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self,
        name: str,
        value: str,
        *,
        description: str | None = None,
        hosts: Sequence[str] | None = None,
    ) -> SecretInfo:
        """Make a secret. No call gives its value back.

        Args:
            name: letters, digits and ``_``, ``.``, ``-``, at most 128.
            value: what a header can have, at most 8192 bytes.
            description: what it is for.
            hosts: the only hosts that it may be sent to, such as
                ``"api.example.com"`` or ``"*.example.com"``. Default: any.

        Raises:
            ConflictError: there is one of this name.
            InvalidRequestError: a value breaks a rule.
            UnsupportedError: the server's operator has set no master key.
        """
        return self._client.call(secrets.create(name, value, description=description, hosts=hosts))

    def list(self) -> builtins.list[SecretInfo]:
        """Return all of them, by name, without values."""
        return self._client.call(secrets.every())

    def replace(
        self,
        name: str,
        value: str,
        *,
        description: str | None = None,
        hosts: Sequence[str] | None = None,
    ) -> SecretInfo:
        """Give a secret another value; the one before is gone.

        Args:
            name: of the secret.
            value: the new one.
            description: another one. Default: it stays.
            hosts: the only ones that it may be sent to from now on; none: any.
                Default: they stay.

        Raises:
            NotFoundError: the secret does not exist.
        """
        return self._client.call(secrets.put(name, value, description=description, hosts=hosts))

    def delete(self, secret: SecretInfo | str) -> None:
        """Delete a secret; its value is gone for good.

        Args:
            secret: the secret, or its name.

        Raises:
            NotFoundError: the secret does not exist.
        """
        name = secret if isinstance(secret, str) else secret.name
        self._client.call(secrets.delete(name))
