"""What the API answers with, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

__all__ = [
    "Ended",
    "Execution",
    "ExecutionError",
    "FileEntry",
    "FileList",
    "Resources",
    "SandboxInfo",
    "Truncated",
]


@dataclass(frozen=True)
class Resources:
    """What a Sandbox may use.

    In a request, ``None`` leaves a field at the server's default.

    Attributes:
        cpus: share of cores; 1 is the time of one core.
        memory_mb: memory of all processes together, in MiB.
        disk_mb: what may be written to its disk, in MiB.
        pids: processes and threads.
    """

    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a Sandbox ended.

    Attributes:
        cause: ``"released"``, ``"deadline"``, ``"oom"``, ``"guest_exit"``,
            ``"engine_lost"``, ``"node_lost"``, ``"disk_full"`` or another word
            of a newer server.
        at: when, in UTC; ``None`` if the server did not say.
    """

    cause: str
    at: datetime | None = None


@dataclass(frozen=True)
class SandboxInfo:
    """One Sandbox as the server describes it at one moment.

    Attributes:
        sandbox_id: its ID for life.
        state: ``"starting"``, ``"running"``, ``"stopping"``, ``"ended"`` or
            another word of a newer server.
        name: the name it was created with; empty if none.
        template: the Template it runs.
        engine: the isolation technology, such as ``"gvisor"``.
        shape: its limits.
        network: ``"public"`` or ``"none"``; empty if the server did not say.
        metadata: the pairs it was created with.
        timeout_seconds: how long it was given from its start or from the last
            change of its timeout.
        created_at: when it was asked for, in UTC.
        started_at: when it began to run, in UTC.
        deadline: when the server ends it, in UTC.
        ended: how it ended; ``None`` while it lives.
    """

    sandbox_id: str
    state: str = ""
    name: str = ""
    template: str = ""
    engine: str = ""
    shape: Resources = field(default_factory=Resources)
    network: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    deadline: datetime | None = None
    ended: Ended | None = None


@dataclass(frozen=True)
class ExecutionError:
    """Why code failed, where the server can tell.

    Attributes:
        name: kind of failure, such as ``"exit_code"``, ``"signal"`` or
            ``"timeout"``.
        message: one sentence.
        traceback: text for people; empty if there is none.
    """

    name: str = ""
    message: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Truncated:
    """How much output is missing, in bytes; zeros when it is complete."""

    stdout_bytes_dropped: int = 0
    stderr_bytes_dropped: int = 0

    def __bool__(self) -> bool:
        """Whether any output is missing."""
        return bool(self.stdout_bytes_dropped or self.stderr_bytes_dropped)


@dataclass(frozen=True)
class Execution:
    """What became of code or a command. It is returned also when the code failed.

    Attributes:
        status: ``"ok"``, ``"error"`` (it failed by itself), ``"timeout"``,
            ``"oom"``, ``"pids"``, ``"disk_full"`` or ``"killed"``.
        stdout: what it wrote to standard output, up to the server's cap.
        stderr: what it wrote to standard error, up to the server's cap.
        exit_code: its exit status; 128 and the number of the signal that ended
            it; 124 after a timeout. ``None`` if the server did not say.
        results: rich results, if the language gives any: for each, a mapping
            from type to data.
        error: why the status is not ``"ok"``; ``None`` if it is.
        duration_ms: how long it ran, in milliseconds.
        truncated: how much output was cut; false when none was.
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    results: tuple[Mapping[str, object], ...] = ()
    error: ExecutionError | None = None
    duration_ms: float = 0
    truncated: Truncated = field(default_factory=Truncated)

    @property
    def ok(self) -> bool:
        """Whether the status is ``"ok"``: it ended by itself with exit code 0."""
        return self.status == "ok"


@dataclass(frozen=True)
class FileEntry:
    """One file, folder or link in a Sandbox.

    All of it is the Sandbox's word: code inside can make any name and any
    link. Check a ``path`` before using it outside.

    Attributes:
        name: the last part of ``path``.
        path: absolute path inside the Sandbox.
        type: ``"file"``, ``"directory"``, ``"symlink"`` or ``"other"``.
        size_bytes: length of a file.
        mode: permissions in octal, such as ``"0644"``.
        owner: user name or number.
        group: group name or number.
        modified_at: time of the last change, in UTC.
        symlink_target: where a link points; ``None`` for anything else.
    """

    name: str
    path: str
    type: str
    size_bytes: int = 0
    mode: str = ""
    owner: str = ""
    group: str = ""
    modified_at: datetime | None = None
    symlink_target: str | None = None

    @property
    def is_dir(self) -> bool:
        """Whether this is a folder."""
        return self.type == "directory"


class FileList(list[FileEntry]):
    """What is in a folder.

    Attributes:
        truncated: there is more than one answer may hold.
    """

    def __init__(self, entries: Iterable[FileEntry] = (), *, truncated: bool = False) -> None:
        super().__init__(entries)
        self.truncated = truncated
