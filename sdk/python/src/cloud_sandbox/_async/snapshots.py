"""What Sandboxes were saved in."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from cloud_sandbox._api import snapshots
from cloud_sandbox.models import SnapshotInfo

from ._io import Data
from .streams import AsyncByteStream

if TYPE_CHECKING:
    from .client import AsyncClient

__all__ = ["AsyncSnapshots", "snapshot_id"]

_PAGE_SIZE = 100  # the largest that the server gives


class AsyncSnapshots:
    """What your Sandboxes were saved in: ``client.snapshots``."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(
        self, *, sandbox_id: str | None = None, limit: int | None = None
    ) -> builtins.list[SnapshotInfo]:
        """Return them, newest first, also those of Sandboxes that have ended.

        Args:
            sandbox_id: only those of this Sandbox.
            limit: how many at most. Default: all.
        """
        found: builtins.list[SnapshotInfo] = []
        cursor = ""
        while limit is None or len(found) < limit:
            size = None if limit is None else min(limit - len(found), _PAGE_SIZE)
            page, cursor = await self._client.call(snapshots.page(size, cursor or None, sandbox_id))
            found.extend(page)
            if not cursor:
                break
        return found[:limit]

    async def get(self, snapshot: SnapshotInfo | str) -> SnapshotInfo:
        """Return one; nothing in it changes but ``uses``.

        Args:
            snapshot: the Snapshot, or its ID.

        Raises:
            NotFoundError: the Snapshot does not exist.
        """
        return await self._client.call(snapshots.look(snapshot_id(snapshot)))

    async def delete(self, snapshot: SnapshotInfo | str) -> None:
        """Delete one. Sandboxes that run are not touched.

        Args:
            snapshot: the Snapshot, or its ID.

        Raises:
            NotFoundError: the Snapshot does not exist.
            ConflictError: a Sandbox is paused in it, or starts from it.
        """
        await self._client.call(snapshots.delete(snapshot_id(snapshot)))

    async def export(
        self, snapshot: SnapshotInfo | str, *, with_template: bool = False
    ) -> AsyncByteStream:
        """Return a Snapshot as one file, to be read piece by piece.

        It holds all files and all memory of the Sandbox, and is not encrypted.
        What was not read to its end is no such file.

        Args:
            snapshot: the Snapshot, or its ID.
            with_template: put the image of its template into the file too, some
                hundred megabytes, for a server that does not have the same one.

        Raises:
            NotFoundError: the Snapshot does not exist.
            ExhaustedError: too many are under way.
        """
        return await self._client.open(snapshots.export(snapshot_id(snapshot), with_template))

    async def import_(
        self, file: Data, *, name: str | None = None, idempotency_key: str | None = None
    ) -> SnapshotInfo:
        """Make a Snapshot of a file that :meth:`export` gave, here or at another server.

        Args:
            file: bytes, an open file, or an iterable of bytes. Files and iterables
                are sent as they are read, in constant memory.
            name: what to call it. Default: as it was called.
            idempotency_key: import once for this key; the file may have 16 MiB
                then. Default: none.

        Raises:
            InvalidRequestError: the file was cut off or changed, or is none.
            PermissionDeniedError: it comes from a server that this one does not
                trust.
            ConflictError: what it needs is not here, such as its template's image.
            ExhaustedError: too many are under way, or the disk has no room.
        """
        return await self._client.call(snapshots.from_file(file, name, idempotency_key))


def snapshot_id(snapshot: SnapshotInfo | str) -> str:
    """Return the ID of a Snapshot, or what stands for one."""
    return snapshot if isinstance(snapshot, str) else snapshot.snapshot_id
