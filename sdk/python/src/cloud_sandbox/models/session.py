"""A Sandbox as the server describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from .volumes import VolumeMount


@dataclass(frozen=True)
class Resources:
    """What a Sandbox may use.

    In a request, ``None`` leaves a field at the server's default.

    Attributes:
        cpus: share of cores; 1 is the time of one core.
        memory_mb: memory of all processes together, in MiB.
        disk_mb: what may be written to its disk, in MiB.
        pids: processes and threads.
        bandwidth_mbps: Mbit/s that its connections carry to the outside, and so
            many back; 0 or ``None``: no limit.
    """

    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = None
    bandwidth_mbps: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a Sandbox ended.

    Attributes:
        cause: ``"released"``, ``"refused"``, ``"deadline"``, ``"idle"``,
            ``"oom"``, ``"guest_exit"``, ``"engine_lost"``, ``"node_lost"``,
            ``"disk_full"``, ``"operator"``, ``"quota"`` or another word of a
            newer server.
        at: when, in UTC; ``None`` if the server did not say.
        output_tail: the last of what its programs wrote, at most 4 KiB; empty
            in lists.
    """

    cause: str = ""
    at: datetime | None = None
    output_tail: str = ""


@dataclass(frozen=True)
class PortLink:
    """What opens one port of a Sandbox: treat it as a password.

    Attributes:
        token: for requests, as the header ``E2B-Traffic-Access-Token``.
        url: opens the port in a browser; empty if the server is reached by an
            address.
        expires_at: until when, in UTC.
    """

    token: str = field(repr=False)
    url: str = field(default="", repr=False)
    expires_at: datetime | None = None

    def __str__(self) -> str:
        """Return the URL."""
        return self.url


@dataclass(frozen=True)
class PortAccess:
    """How one port of a Sandbox is reached, whether something listens or not.

    Attributes:
        port: 1 to 65,535.
        private: it asks for a token.
        tls: it is spoken to by TLS inside.
        url: where it is reached; empty if the server is reached by an address.
    """

    port: int
    private: bool = False
    tls: bool = False
    url: str = ""


@dataclass(frozen=True)
class OpenPort:
    """A TCP port that a program in a Sandbox listens on, as the Sandbox itself tells.

    Attributes:
        port: its number.
        address: on which it listens; ``"0.0.0.0"`` and ``"::"`` are all.
        loopback: it listens for the Sandbox itself alone; :attr:`url` leads there
            all the same.
        pid: a process that holds it; 0 if none was found.
        process: the name of that process.
        agent: it is of the agent in the Sandbox.
        private: who asks for it needs a token, as ``port_link`` makes it.
        tls: it is spoken to by TLS inside.
        url: where it is reached from outside; empty for the agent's, and if the
            server is reached by an address.
    """

    port: int
    address: str
    loopback: bool = False
    pid: int = 0
    process: str = ""
    agent: bool = False
    private: bool = False
    tls: bool = False
    url: str = ""


@dataclass(frozen=True)
class SandboxInfo:
    """One Sandbox as the server describes it at one moment.

    Attributes:
        sandbox_id: its ID for life.
        state: ``"starting"``, ``"running"``, ``"pausing"``, ``"paused"``,
            ``"resuming"``, ``"stopping"``, ``"ended"`` or another word of a newer
            server.
        name: its name; empty if none.
        template: the Template it runs.
        engine: the isolation technology, such as ``"gvisor"``.
        shape: what it was started with.
        resources: what it may use now, within its shape.
        network: ``"public"``, ``"none"`` or rules; empty if the server did not say.
        ports: who reaches its ports, as for ``Sandbox.create``.
        secrets: which requests get which secrets, as for ``Sandbox.create``.
        volumes: what is mounted where.
        user: who its programs run as; empty for the default.
        cwd: where its programs start; empty for the default.
        metadata: pairs for your own use.
        timeout_seconds: how long it was given from its start or from the last
            change of its timeout.
        idle_timeout_seconds: it ends when nobody used it for so long; ``None``
            if it does not.
        created_at: when it was asked for, in UTC.
        started_at: when it began to run, in UTC.
        deadline: when the server pauses or ends it, in UTC; for a paused one, when
            it is ended.
        on_timeout: what the deadline does: ``"pause"``, ``"pause_files"`` or
            ``"end"``.
        auto_resume: whether a call that reaches into it resumes it when it is
            paused.
        timeline: grows when its state goes back, as a rollback has it. IDs of
            processes carry it.
        snapshot_id: what it is paused in; while it runs, what its state came
            from or was last saved in; empty if nothing.
        origin_snapshot_id: the Snapshot that it was created from, which may be
            deleted; empty if it was created from a Template.
        checkpoint_every_seconds: it is saved so often while it runs; ``None``
            if it is not.
        restored_from: the Snapshot that it went back to when it was last lost;
            empty if it never was.
        lost_seconds: how long it had run beyond that, at most.
        ended: how it ended; ``None`` while it lives.
    """

    sandbox_id: str
    state: str = ""
    name: str = ""
    template: str = ""
    engine: str = ""
    shape: Resources = field(default_factory=Resources)
    resources: Resources = field(default_factory=Resources)
    network: str | Mapping[str, object] = ""
    ports: Mapping[str, object] = field(default_factory=dict)
    secrets: tuple[Mapping[str, str], ...] = ()
    volumes: tuple[VolumeMount, ...] = ()
    user: str = ""
    cwd: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    deadline: datetime | None = None
    on_timeout: str = ""
    auto_resume: bool = False
    timeline: int = 1
    snapshot_id: str = ""
    origin_snapshot_id: str = ""
    checkpoint_every_seconds: float | None = None
    restored_from: str = ""
    lost_seconds: float | None = None
    ended: Ended | None = None
