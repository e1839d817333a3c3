"""Volumes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class VolumeInfo:
    """Storage that outlives Sandboxes and is mounted into them.

    Attributes:
        volume_id: its ID.
        name: its name, which never changes.
        size_mb: what its files may have together, in MiB.
        used_bytes: what they have on the disk; ``None`` while its node does not
            answer.
        files: how many files and folders there are; ``None`` likewise.
        created_at: when it was made, in UTC.
    """

    volume_id: str
    name: str
    size_mb: int = 0
    used_bytes: int | None = None
    files: int | None = None
    created_at: datetime | None = None


@dataclass(frozen=True)
class VolumeMount:
    """Where a Sandbox has a volume.

    Attributes:
        volume: the volume's name.
        volume_id: its ID.
        path: of the folder inside that it is mounted on.
    """

    volume: str
    volume_id: str
    path: str
