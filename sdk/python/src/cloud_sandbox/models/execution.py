"""What became of code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ExecutionError:
    """Why code failed, where the server can tell.

    Attributes:
        name: kind of failure: that of the exception in a context, or a word
            such as ``"exit_code"``, ``"signal"`` or ``"timeout"``.
        message: one sentence.
        traceback: text for people; empty if there is none.
    """

    name: str = ""
    message: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Truncated:
    """How much output is missing; zeros when it is complete.

    Attributes:
        stdout_bytes_dropped: bytes of standard output.
        stderr_bytes_dropped: bytes of standard error.
        results_dropped: number of rich results.
    """

    stdout_bytes_dropped: int = 0
    stderr_bytes_dropped: int = 0
    results_dropped: int = 0

    def __bool__(self) -> bool:
        """Whether anything is missing."""
        return bool(self.stdout_bytes_dropped or self.stderr_bytes_dropped or self.results_dropped)


@dataclass(frozen=True)
class Result:
    """One value that code showed, in one or more representations.

    All of it is the code's word: escape or isolate HTML, SVG and JavaScript
    before a browser sees them. Jupyter shows it as the code meant it.

    Attributes:
        is_main_result: the value of the last expression, not of ``display``.
        text: as ``repr`` gives it.
        html: as HTML.
        markdown: as Markdown.
        svg: as an SVG image.
        png: bytes of a PNG image.
        jpeg: bytes of a JPEG image.
        pdf: bytes of a PDF document.
        latex: as LaTeX.
        json: as JSON holds it.
        javascript: as JavaScript.
        data: of a table, each column with its values.
        chart: of a chart, what it shows.
        extra: other representations by MIME type.
    """

    is_main_result: bool = False
    text: str | None = None
    html: str | None = None
    markdown: str | None = None
    svg: str | None = None
    png: bytes | None = field(default=None, repr=False)
    jpeg: bytes | None = field(default=None, repr=False)
    pdf: bytes | None = field(default=None, repr=False)
    latex: str | None = None
    json: object = None
    javascript: str | None = None
    data: object = None
    chart: object = None
    extra: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the plainest text there is."""
        return self.text or self.markdown or self.latex or self.html or ""

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        """Return what Jupyter shows, by MIME type."""
        bundle = {
            "text/plain": self.text,
            "text/html": self.html,
            "text/markdown": self.markdown,
            "image/svg+xml": self.svg,
            "image/png": self.png,
            "image/jpeg": self.jpeg,
            "application/pdf": self.pdf,
            "text/latex": self.latex,
            "application/json": self.json,
            "application/javascript": self.javascript,
            **self.extra,
        }
        return {kind: value for kind, value in bundle.items() if value is not None}


@dataclass(frozen=True)
class Execution:
    """What became of code or a command. It is returned also when the code failed.

    Attributes:
        status: ``"ok"``, ``"error"`` (it failed by itself), ``"timeout"``,
            ``"oom"``, ``"pids"``, ``"disk_full"``, ``"killed"``, or ``"paused"``:
            its Sandbox was paused meanwhile, and it goes on when that resumes, as
            the process ``process_id``.
        stdout: what it wrote to standard output, up to the server's cap.
        stderr: what it wrote to standard error, up to the server's cap. In both,
            what is not UTF-8 is replaced by U+FFFD.
        exit_code: its exit status; 128 and the number of the signal that ended
            it; 124 after a timeout. ``None`` if the server did not say.
        results: what ``display`` showed and the value of the last expression,
            in languages that keep their state; at most 256.
        error: why the status is not ``"ok"``; ``None`` if it is.
        duration_ms: how long it ran, in milliseconds.
        truncated: how much output was cut; false when none was.
        context_id: where it ran; ``None`` if it was a new program.
        execution_count: number of executions of that context, from 1.
        context_restarted: its interpreter is not the one of the execution
            before: the variables were gone.
        context_ended: its interpreter ended with this execution; the next one
            gets a fresh one.
        stdout_bytes: the bytes that ``stdout`` stands for.
        stderr_bytes: the bytes that ``stderr`` stands for.
        process_id: the process that it was, or is; ``None`` if the server did not
            say.
        next_offset: where the output that it writes later begins.
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    results: tuple[Result, ...] = ()
    error: ExecutionError | None = None
    duration_ms: float = 0
    truncated: Truncated = field(default_factory=Truncated)
    context_id: str | None = None
    execution_count: int | None = None
    context_restarted: bool = False
    context_ended: bool = False
    stdout_bytes: bytes = field(default=b"", repr=False)
    stderr_bytes: bytes = field(default=b"", repr=False)
    process_id: str | None = None
    next_offset: int | None = None

    @property
    def result(self) -> Result | None:
        """The value of the last expression; ``None`` if it had none."""
        return next((result for result in self.results if result.is_main_result), None)

    @property
    def ok(self) -> bool:
        """Whether the status is ``"ok"``: it ended by itself with exit code 0."""
        return self.status == "ok"


@dataclass(frozen=True)
class ContextInfo:
    """An interpreter that keeps its state from one execution to the next.

    Attributes:
        context_id: its ID within its Sandbox.
        language: what it runs.
        cwd: where its interpreter starts.
        user: whose process it is.
        default: code without a context runs here.
        state: ``"stopped"`` (it has no interpreter now, and no state; the next
            execution starts one), ``"idle"`` or ``"busy"``.
        execution_count: executions so far.
    """

    context_id: str
    language: str = ""
    cwd: str = ""
    user: str = ""
    default: bool = False
    state: str = ""
    execution_count: int = 0
