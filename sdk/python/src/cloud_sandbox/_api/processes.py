"""Processes that go on by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cloud_sandbox.models import (
    OutputPiece,
    ProcessInfo,
    ProcessOutput,
    TerminalSize,
    WaitResult,
)

from . import fields
from .call import (
    READ_SECONDS,
    Answer,
    Call,
    Path,
    at,
    copied,
    get,
    given,
    nothing,
    once,
    path_text,
    post,
    seconds,
    segment,
    true,
)
from .executions import exact, execution_error, input_of
from .sse import Event

# Writing waits for a process that does not read, up to 30 s.
_WRITE_SECONDS = 90.0
MAX_WAIT_SECONDS = 3600.0


@dataclass(frozen=True)
class Started:
    """A process and what it had written when its start was answered."""

    info: ProcessInfo
    stdout: bytes
    stderr: bytes
    offset: int


def start(
    sandbox_id: str,
    command: str | Sequence[str] | None,
    *,
    name: str | None,
    user: str | None,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    timeout_seconds: float | None,
    stdin: str | bytes | None,
    keep_stdin: bool,
    pty: TerminalSize | None,
    shell: str | None,
    yield_seconds: float,
    max_output_bytes: int | None,
    key: str | None,
) -> Call[Started]:
    """Start a process, once for each key; wait for its end as long as yield_seconds."""
    line = command if isinstance(command, str) else None
    argv = None if line is not None or command is None else list(command)
    body = given(
        sandbox_id=sandbox_id,
        command=line,
        argv=argv,
        name=name,
        user=user,
        cwd=path_text(cwd),
        env=copied(env),
        background=true(yield_seconds <= 0),
        yield_ms=int(yield_seconds * 1000) if yield_seconds > 0 else None,
        max_output_bytes=max_output_bytes,
        timeout_seconds=seconds(timeout_seconds),
        **input_of(stdin),
        keep_stdin=true(keep_stdin),
        pty=None if pty is None else {"cols": pty.cols, "rows": pty.rows},
        shell=shell,
    )
    call = post(
        "/api/v1/processes",
        _started,
        body,
        read_seconds=max(yield_seconds, 0.0) + READ_SECONDS,
    )
    return once(call, key)


def every(sandbox_id: str, state: str | None) -> Call[list[ProcessInfo]]:
    """Ask for all processes."""
    return get("/api/v1/processes", _list, at(sandbox_id, state=state))


def look(sandbox_id: str, process_id: str) -> Call[ProcessInfo]:
    """Ask what a process is now."""
    return get(_path(process_id), _one, at(sandbox_id))


def end(sandbox_id: str, process_id: str) -> Call[ProcessInfo]:
    """End a process and all that it started."""
    query = at(sandbox_id)
    return Call("DELETE", _path(process_id), _one, query=query, repeatable=True)


def output(sandbox_id: str, process_id: str, start: int, stream: str | None) -> Call[ProcessOutput]:
    """Ask for the bytes there are."""
    query = at(sandbox_id, **{"from": str(start)}, stream=stream)
    return get(f"{_path(process_id)}/output", _output, query)


def follow(sandbox_id: str, process_id: str, start: int, stream: str | None) -> Call[None]:
    """Follow the output, as events."""
    query = at(sandbox_id, **{"from": str(start)}, follow="true", stream=stream)
    headers = {"Accept": "text/event-stream"}
    return get(f"{_path(process_id)}/output", nothing, query, headers=headers)


def write(sandbox_id: str, process_id: str, data: str | bytes, *, eof: bool) -> Call[int]:
    """Write input."""
    return Call(
        "POST",
        f"{_path(process_id)}/stdin",
        lambda answer: fields.integer(answer.json(), "written_bytes") or 0,
        query=at(sandbox_id, eof="true" if eof else None),
        content=data.encode() if isinstance(data, str) else bytes(data),
        headers={"Content-Type": "application/octet-stream"},
        read_seconds=_WRITE_SECONDS,
    )


def signal(sandbox_id: str, process_id: str, name: str | int) -> Call[ProcessInfo]:
    """Send a signal."""
    return post(f"{_path(process_id)}/signal", _one, {"signal": name}, query=at(sandbox_id))


def resize(sandbox_id: str, process_id: str, size: TerminalSize) -> Call[ProcessInfo]:
    """Change the size of the terminal."""
    body = {"cols": size.cols, "rows": size.rows}
    path = f"{_path(process_id)}/resize"
    return post(path, _one, body, query=at(sandbox_id), repeatable=True)


def wait(sandbox_id: str, process_id: str, what: str, timeout_seconds: float) -> Call[WaitResult]:
    """Wait for the end, a port, an answer or a line."""
    limit = f"{timeout_seconds:.3f}".rstrip("0").rstrip(".")
    query = at(sandbox_id, **{"for": what}, timeout_seconds=limit)
    return get(
        f"{_path(process_id)}/wait", _waited, query, read_seconds=timeout_seconds + READ_SECONDS
    )


def attach(sandbox_id: str, process_id: str, start: int) -> Call[None]:
    """Open a WebSocket to it."""
    return get(f"{_path(process_id)}/attach", nothing, at(sandbox_id, **{"from": str(start)}))


def piece_of(event: Event) -> OutputPiece:
    """Decode a piece of output, or the word that some was dropped."""
    obj = fields.parse_object(event.data)
    offset = fields.integer(obj, "offset") or 0
    after = fields.integer(obj, "next_offset")
    data = fields.decoded(obj, "base64")
    return OutputPiece(
        stream=event.name,
        text=fields.text(obj, "text"),
        offset=offset,
        next_offset=offset if after is None else after,
        data=fields.text(obj, "text").encode() if data is None else data,
    )


def info_of(obj: fields.Object) -> ProcessInfo:
    """Decode one process."""
    error, pty = fields.sub_object(obj, "error"), fields.sub_object(obj, "pty")
    return ProcessInfo(
        process_id=fields.required_text(obj, "process_id"),
        name=fields.text(obj, "name"),
        state=fields.text(obj, "state"),
        status=fields.text(obj, "status"),
        exit_code=fields.integer(obj, "exit_code"),
        error=None if error is None else execution_error(error),
        pid=fields.integer(obj, "pid") or 0,
        command=fields.text(obj, "command"),
        cwd=fields.text(obj, "cwd"),
        user=fields.text(obj, "user"),
        pty=None
        if pty is None
        else TerminalSize(
            cols=fields.integer(pty, "cols") or 0, rows=fields.integer(pty, "rows") or 0
        ),
        shell=fields.text(obj, "shell"),
        timeout_seconds=fields.number(obj, "timeout_seconds"),
        started_at=fields.time(obj, "started_at"),
        ended_at=fields.time(obj, "ended_at"),
        output_start=fields.integer(obj, "output_start") or 0,
        output_end=fields.integer(obj, "output_end") or 0,
        timeline=fields.integer(obj, "timeline") or 0,
    )


def _one(answer: Answer) -> ProcessInfo:
    return info_of(answer.json())


def _list(answer: Answer) -> list[ProcessInfo]:
    return [info_of(item) for item in fields.objects(answer.json(), "processes")]


def _started(answer: Answer) -> Started:
    obj = answer.json()
    return Started(
        info=info_of(obj),
        stdout=exact(obj, "stdout"),
        stderr=exact(obj, "stderr"),
        offset=fields.integer(obj, "offset") or 0,
    )


def _output(answer: Answer) -> ProcessOutput:
    return ProcessOutput(
        data=answer.content,
        next_offset=fields.header_integer(answer.headers, "X-Next-Offset"),
        dropped=fields.header_integer(answer.headers, "X-Dropped"),
        ended=answer.headers.get("X-Process-State") == "ended",
    )


def _waited(answer: Answer) -> WaitResult:
    obj = answer.json()
    return WaitResult(
        met=fields.flag(obj, "met"),
        process=info_of(fields.sub_object(obj, "process") or {}),
        http_status=fields.integer(obj, "http_status"),
        line=fields.text(obj, "line"),
        offset=fields.integer(obj, "offset"),
    )


def _path(process_id: str) -> str:
    return f"/api/v1/processes/{segment(process_id, 'process ID')}"
