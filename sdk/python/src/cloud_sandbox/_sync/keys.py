# Generated from _async by scripts/generate_sync.py: edit it there.
"""API keys."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from cloud_sandbox._api import keys
from cloud_sandbox.models import KeyInfo

if TYPE_CHECKING:
    from .client import Client

__all__ = ["Keys"]


class Keys:
    """Your API keys: ``client.keys``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self,
        name: str,
        *,
        scopes: Sequence[str] | None = None,
        role: Literal["viewer", "user", "admin", "owner", "operator"] | None = None,
        expires_in_seconds: float | None = None,
    ) -> KeyInfo:
        """Make a key. Its secret is in ``key``, this once: the server keeps a hash.

        Args:
            name: what it is for, 1 to 100 characters.
            scopes: what it may do, such as ``"read"`` and ``"write"``. Default:
                all that you may.
            role: Default: yours.
            expires_in_seconds: at least 1. Default: it does not expire, or with
                the key that makes it.

        Raises:
            PermissionDeniedError: more than you may do yourself.
            InvalidRequestError: a value breaks a rule.
            ConnectionFailedError: the connection broke; there may be a key
                whose secret nobody knows: see :meth:`list`.
        """
        return self._client.call(
            keys.create(name, scopes=scopes, role=role, expires_in_seconds=expires_in_seconds)
        )

    def list(self) -> builtins.list[KeyInfo]:
        """Return all of them, newest first, without secrets."""
        return self._client.call(keys.every())

    def rotate(self, key: KeyInfo | str, *, overlap_seconds: float | None = None) -> KeyInfo:
        """Give a key another secret, told once in ``key``; the one before ends later.

        A secret that nobody has used yet is replaced and ends at once, and the
        one before it stays valid.

        Args:
            key: the key, or its ID.
            overlap_seconds: how long the old secret stays valid, at most 30
                days; 0: it ends at once. Default: a day.

        Raises:
            NotFoundError: the key does not exist.
            PermissionDeniedError: the key may do more than you, or for longer.
            ConflictError: it has two valid secrets already, or it has expired.
        """
        key_id = key if isinstance(key, str) else key.key_id
        return self._client.call(keys.rotate(key_id, overlap_seconds=overlap_seconds))

    def delete(self, key: KeyInfo | str) -> None:
        """Revoke a key; several servers of one installation know within a second.

        Args:
            key: the key, or its ID.

        Raises:
            NotFoundError: the key does not exist.
        """
        self._client.call(keys.revoke(key if isinstance(key, str) else key.key_id))
