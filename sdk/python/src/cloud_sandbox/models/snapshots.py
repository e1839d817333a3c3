"""What a Sandbox was saved in."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from .session import Resources
from .volumes import VolumeMount


@dataclass(frozen=True)
class SnapshotInfo:
    """The saved state of a Sandbox, which never changes.

    Attributes:
        snapshot_id: its ID.
        sandbox_id: whose state it is; that one may have ended.
        parent_id: the Snapshot that this state came from; empty if none.
        name: its name; empty if none.
        kept: it stays until it is deleted. Others, which pauses and forks make,
            stay as long as a Sandbox refers to them.
        memory: it has memory and programs too; without, what starts from it
            boots.
        current: in a history, where the Sandbox is.
        template: the Template of the Sandbox.
        shape: what a Sandbox that starts from it gets.
        volumes: what a Sandbox that starts from it has mounted; one may have been
            deleted since.
        engine_build: the build of the engine that can restore its memory.
        size_bytes: what it takes on disk.
        uses: how many Sandboxes that have not ended refer to it.
        created_at: when, in UTC.
    """

    snapshot_id: str
    sandbox_id: str = ""
    parent_id: str = ""
    name: str = ""
    kept: bool = False
    memory: bool = False
    current: bool = False
    template: str = ""
    shape: Resources = field(default_factory=Resources)
    volumes: tuple[VolumeMount, ...] = ()
    engine_build: str = ""
    size_bytes: int = 0
    uses: int = 0
    created_at: datetime | None = None
