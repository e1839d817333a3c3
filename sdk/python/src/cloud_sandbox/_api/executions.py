"""Running code to its end."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace

from cloud_sandbox.models import Execution, ExecutionError, Result, Truncated

from . import fields
from .call import (
    READ_SECONDS,
    Call,
    Path,
    at,
    copied,
    given,
    new_key,
    nothing,
    path_text,
    post,
    seconds,
    true,
)
from .sse import Event

# What the server gives code that came without a timeout.
DEFAULT_SECONDS = 60.0

_PATH = "/api/v1/execute"


def execute(
    sandbox_id: str,
    code: str,
    *,
    language: str | None,
    context_id: str | None,
    timeout_seconds: float | None,
    env: Mapping[str, str] | None,
    cwd: Path | None,
    stdin: str | bytes | None,
    user: str | None,
    max_output_bytes: int | None,
    stream: bool,
) -> Call[Execution]:
    """Run code, once for its key; with ``stream``, the answer is a stream of events."""
    body = given(
        sandbox_id=sandbox_id,
        code=code,
        language=language,
        context_id=context_id,
        timeout_seconds=seconds(timeout_seconds),
        env=copied(env),
        cwd=path_text(cwd),
        **input_of(stdin),
        user=user,
        max_output_bytes=max_output_bytes,
        stream=true(stream),
    )
    allowed = DEFAULT_SECONDS if timeout_seconds is None else timeout_seconds
    call = post(
        _PATH,
        lambda answer: execution_of(answer.json()),
        body,
        read_seconds=allowed + READ_SECONDS,
        headers={"Accept": "text/event-stream" if stream else "application/json"},
    )
    # The key finds what a try began; who repeats it has to say that it is a repeat.
    return replace(call, headers={**call.headers, "Idempotency-Key": new_key()})


def again(call: Call[Execution], event_id: str = "") -> Call[Execution]:
    """Ask for an execution that may have begun, after the event with this ID if any."""
    return replace(call, headers={**call.headers, "Last-Event-ID": event_id or "0.0.0"})


def end(sandbox_id: str, call: Call[Execution]) -> Call[None]:
    """End what an execution's call has begun."""
    key = {"Idempotency-Key": call.headers["Idempotency-Key"]}
    return Call("DELETE", _PATH, nothing, query=at(sandbox_id), headers=key, repeatable=True)


def input_of(stdin: str | bytes | None) -> dict[str, str | None]:
    """Return the fields of a body that hold input."""
    if isinstance(stdin, bytes):
        return {"stdin_base64": base64.b64encode(stdin).decode()}
    return {"stdin": stdin}


def output_of(event: Event) -> str:
    """Return the text of a ``stdout`` or ``stderr`` event."""
    return fields.text(fields.parse_object(event.data), "text")


def result_of(event: Event) -> Result:
    """Return what a ``display`` event shows."""
    return _result(fields.parse_object(event.data))


def execution_of(obj: fields.Object) -> Execution:
    """Decode what became of code."""
    error = fields.sub_object(obj, "error")
    cut = fields.sub_object(obj, "truncated") or {}
    return Execution(
        status=fields.required_text(obj, "status"),
        stdout=fields.text(obj, "stdout"),
        stderr=fields.text(obj, "stderr"),
        stdout_bytes=exact(obj, "stdout"),
        stderr_bytes=exact(obj, "stderr"),
        process_id=fields.text(obj, "process_id") or None,
        next_offset=fields.integer(obj, "next_offset"),
        exit_code=fields.integer(obj, "exit_code"),
        results=tuple(_result(item) for item in fields.objects(obj, "results")),
        error=None if error is None else execution_error(error),
        duration_ms=fields.number(obj, "duration_ms") or 0,
        truncated=Truncated(
            stdout_bytes_dropped=fields.integer(cut, "stdout_bytes_dropped") or 0,
            stderr_bytes_dropped=fields.integer(cut, "stderr_bytes_dropped") or 0,
            results_dropped=fields.integer(cut, "results_dropped") or 0,
        ),
        context_id=fields.text(obj, "context_id") or None,
        execution_count=fields.integer(obj, "execution_count"),
        context_restarted=fields.flag(obj, "context_restarted"),
        context_ended=fields.flag(obj, "context_ended"),
    )


def exact(obj: fields.Object, stream: str) -> bytes:
    """Return the bytes of a stream whose text may have replacements."""
    data = fields.decoded(obj, f"{stream}_base64")
    return fields.text(obj, stream).encode() if data is None else data


def execution_error(obj: fields.Object) -> ExecutionError:
    """Decode why code or a process failed."""
    return ExecutionError(
        name=fields.text(obj, "name"),
        message=fields.text(obj, "message"),
        traceback=fields.text(obj, "traceback"),
    )


def _result(obj: fields.Object) -> Result:
    return Result(
        is_main_result=fields.flag(obj, "is_main_result"),
        text=fields.optional_text(obj, "text"),
        html=fields.optional_text(obj, "html"),
        markdown=fields.optional_text(obj, "markdown"),
        svg=fields.optional_text(obj, "svg"),
        png=fields.decoded(obj, "png"),
        jpeg=fields.decoded(obj, "jpeg"),
        pdf=fields.decoded(obj, "pdf"),
        latex=fields.optional_text(obj, "latex"),
        json=obj.get("json"),
        javascript=fields.optional_text(obj, "javascript"),
        data=obj.get("data"),
        chart=obj.get("chart"),
        extra=fields.texts(obj, "extra"),
    )
