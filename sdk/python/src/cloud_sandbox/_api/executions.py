"""Running code to its end."""

from __future__ import annotations

from collections.abc import Mapping

from cloud_sandbox.models import Execution, ExecutionError, Result, Truncated

from . import fields
from .call import READ_SECONDS, Call, Path, copied, given, path_text, post, seconds, true
from .sse import Event

# What the server gives code that came without a timeout.
DEFAULT_SECONDS = 60.0


def execute(
    sandbox_id: str,
    code: str,
    *,
    language: str | None,
    context_id: str | None,
    timeout_seconds: float | None,
    env: Mapping[str, str] | None,
    cwd: Path | None,
    stdin: str | None,
    user: str | None,
    max_output_bytes: int | None,
    stream: bool,
) -> Call[Execution]:
    """Run code; with ``stream``, the answer is a stream of events."""
    body = given(
        sandbox_id=sandbox_id,
        code=code,
        language=language,
        context_id=context_id,
        timeout_seconds=seconds(timeout_seconds),
        env=copied(env),
        cwd=path_text(cwd),
        stdin=stdin,
        user=user,
        max_output_bytes=max_output_bytes,
        stream=true(stream),
    )
    allowed = DEFAULT_SECONDS if timeout_seconds is None else timeout_seconds
    return post(
        "/api/v1/execute",
        lambda answer: execution_of(answer.json()),
        body,
        read_seconds=allowed + READ_SECONDS,
        headers={"Accept": "text/event-stream" if stream else "application/json"},
    )


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
