"""Processes and what they write."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from .execution import ExecutionError


@dataclass(frozen=True)
class TerminalSize:
    """How large a terminal is, in characters.

    Attributes:
        cols: width.
        rows: height.
    """

    cols: int = 80
    rows: int = 24


@dataclass(frozen=True)
class ProcessInfo:
    """One process as the server describes it at one moment.

    All of it is the Sandbox's word.

    Attributes:
        process_id: names it in its Sandbox.
        name: the name it was started with; empty if none.
        state: ``"running"`` or ``"ended"``.
        status: once it has ended, as of an :class:`Execution`; empty before.
        exit_code: its exit status; 128 and the number of the signal that ended
            it; 124 after a timeout. ``None`` while it runs.
        error: why the status is not ``"ok"``; ``None`` if it is, or while it runs.
        pid: its number inside the Sandbox.
        command: what was asked for, at most 1 KiB of it.
        cwd: where it was started.
        user: whose it is.
        pty: size of its terminal; ``None`` if it has none.
        shell: the shell session it belongs to; empty if none.
        timeout_seconds: it is ended when it runs longer; ``None`` for no limit.
        started_at: when it began, in UTC.
        ended_at: when it ended, in UTC.
        output_start: offset of the first byte of output that is kept.
        output_end: how many bytes it has written in all.
        timeline: grows when the Sandbox goes back to an earlier state.
    """

    process_id: str
    name: str = ""
    state: str = ""
    status: str = ""
    exit_code: int | None = None
    error: ExecutionError | None = None
    pid: int = 0
    command: str = ""
    cwd: str = ""
    user: str = ""
    pty: TerminalSize | None = None
    shell: str = ""
    timeout_seconds: float | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    output_start: int = 0
    output_end: int = 0
    timeline: int = 0

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self.state == "ended"

    @property
    def ok(self) -> bool:
        """Whether it has ended by itself with exit code 0."""
        return self.status == "ok"


@dataclass(frozen=True)
class OutputPiece:
    """A piece of what a process wrote.

    Attributes:
        stream: ``"stdout"``, ``"stderr"``, or ``"dropped"`` for bytes that are
            kept no more.
        text: the piece; bytes that are not UTF-8 are replaced by U+FFFD.
        offset: of its first byte in all that the process wrote.
        next_offset: where to read on.
        data: the bytes that ``text`` stands for.
    """

    stream: str
    text: str
    offset: int
    next_offset: int
    data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class ProcessOutput:
    """What a process wrote from an offset on.

    Attributes:
        data: the bytes.
        next_offset: where to read on.
        dropped: how many bytes are kept no more and so left out.
        ended: the process has ended, so this is the last of it.
    """

    data: bytes = field(repr=False)
    next_offset: int = 0
    dropped: int = 0
    ended: bool = False

    @property
    def text(self) -> str:
        """The bytes as text; what is not UTF-8 is replaced by U+FFFD."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True)
class WaitResult:
    """What came of waiting; true if what was waited for came true.

    Attributes:
        met: it came true. Otherwise the time was over, or the process had ended.
        process: the process afterwards.
        http_status: of the last answer, when waiting for one.
        line: the line that matched, at most 4 KiB of it.
        offset: where the output goes on after that line.
    """

    met: bool
    process: ProcessInfo
    http_status: int | None = None
    line: str = ""
    offset: int | None = None

    def __bool__(self) -> bool:
        """Whether it came true."""
        return self.met
