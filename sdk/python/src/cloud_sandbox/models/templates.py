"""Templates and how they are built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from cloud_sandbox.errors import CloudSandboxError


@dataclass(frozen=True)
class TemplateFile:
    """A file to put into a Template.

    Attributes:
        path: where, absolute.
        content: str is written as UTF-8.
        mode: a number such as ``0o755``, or octal text. Default: ``0644``.
        owner: ``"root"`` or ``"user"``.
    """

    path: str
    content: str | bytes = field(repr=False)
    mode: int | str | None = None
    owner: Literal["root", "user"] | None = None


@dataclass(frozen=True)
class TemplateInfo:
    """What Sandboxes can start from.

    Attributes:
        template: how to name it when a Sandbox is made.
        name: its name, without tag or version.
        tag: ``None`` when the version was named.
        version: hash of its content.
        shared: it is the server's own, for everybody.
        source: what it was really made of.
        packages: those that were asked for.
        env: environment of processes; what a Sandbox or a call sets comes on top.
        start: shell command that runs in every Sandbox of it; empty for none.
        ready: shell command that a Sandbox waits for; empty for none.
        size_bytes: how large its image is.
        stored_bytes: what its image takes on the server's disk, which counts for
            the quota ``template_mb`` unless ``shared``.
        created_at: when it was built, in UTC.
        versions: in the answer of ``get``, every version, newest first.
    """

    template: str
    name: str = ""
    tag: str | None = None
    version: str = ""
    shared: bool = False
    source: str = ""
    packages: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    start: str = ""
    ready: str = ""
    size_bytes: int = 0
    stored_bytes: int = 0
    created_at: datetime | None = None
    versions: tuple[TemplateInfo, ...] = ()


@dataclass(frozen=True)
class RemovedTemplates:
    """What a removal took away.

    Attributes:
        removed: the names that are gone.
        freed_bytes: what the server's disk got back; 0 where other tags or
            versions still need the images.
    """

    removed: tuple[str, ...] = ()
    freed_bytes: int = 0


@dataclass(frozen=True)
class BuildInfo:
    """A build of a Template.

    Attributes:
        build_id: its ID.
        template: what it builds.
        source: of what.
        state: ``"queued"``, ``"building"``, ``"ready"``, ``"failed"`` or
            ``"cancelled"``.
        progress: what it does now, or did last.
        version: once it is ready, hash of what was built; empty before.
        size_bytes: once it is ready, how large that is.
        cached: it was there, and nothing was to be done.
        error: why it failed; not raised. ``None`` if it did not.
        created_at: when it was asked for, in UTC.
        started_at: when it began, in UTC.
        ended_at: when it ended, in UTC.
    """

    build_id: str
    template: str = ""
    source: str = ""
    state: str = ""
    progress: str = ""
    version: str = ""
    size_bytes: int = 0
    cached: bool = False
    error: CloudSandboxError | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether it is over, well or not."""
        return self.state in ("ready", "failed", "cancelled")


@dataclass(frozen=True)
class BuildLine:
    """A line of a build's log.

    Attributes:
        text: the line without its end.
        next_offset: where to read on.
        at: when, in UTC.
    """

    text: str
    next_offset: int = 0
    at: datetime | None = None
