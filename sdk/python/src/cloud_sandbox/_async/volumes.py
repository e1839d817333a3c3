"""Volumes."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from cloud_sandbox._api import volumes
from cloud_sandbox.models import VolumeInfo

if TYPE_CHECKING:
    from .client import AsyncClient

__all__ = ["AsyncVolumes"]


class AsyncVolumes:
    """Your volumes: ``client.volumes``.

    A volume keeps files beyond the Sandboxes that use them. Any number of
    Sandboxes can have one mounted at once (``volumes`` of
    ``AsyncSandbox.create``), and what one writes the others see.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(
        self, name: str, *, size_mb: int | None = None, idempotency_key: str | None = None
    ) -> VolumeInfo:
        """Make an empty volume.

        Args:
            name: letters, digits, ``_`` and ``-``, at most 128.
            size_mb: what its files may have together, in MiB. Default: 1,024.
            idempotency_key: for a day the answer is the same volume for this key.
                Default: a new key, so that a call that is tried again makes one
                volume.

        Raises:
            ConflictError: there is one of this name.
            ExhaustedError: the quota has no room for it.
            InvalidRequestError: a value breaks a rule.
            UnsupportedError: the server keeps no volumes.
        """
        return await self._client.call(volumes.create(name, size_mb=size_mb, key=idempotency_key))

    async def list(self) -> builtins.list[VolumeInfo]:
        """Return all of them, by name, with what they hold."""
        return await self._client.call(volumes.every())

    async def get(self, volume: VolumeInfo | str) -> VolumeInfo:
        """Return one with what it holds now.

        Args:
            volume: the volume, its name or its ID.

        Raises:
            NotFoundError: the volume does not exist.
        """
        return await self._client.call(volumes.look(volumes.name_of(volume)))

    async def delete(self, volume: VolumeInfo | str) -> None:
        """Delete one; all that is in it is gone for good.

        Args:
            volume: the volume, its name or its ID.

        Raises:
            NotFoundError: the volume does not exist.
            ConflictError: a Sandbox that has not ended has it mounted.
        """
        await self._client.call(volumes.delete(volumes.name_of(volume)))
