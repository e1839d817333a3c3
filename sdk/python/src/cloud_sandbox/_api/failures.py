"""Reading answers that are errors."""

from __future__ import annotations

from collections.abc import Mapping

from cloud_sandbox.errors import CloudSandboxError, ProtocolError, error_from

from . import fields
from .sse import Event


def of_answer(status_code: int, headers: Mapping[str, str], content: bytes) -> CloudSandboxError:
    """Make the exception for an answer that is an error."""
    if status_code < 400:
        return ProtocolError(f"the server answered with HTTP {status_code}")
    try:
        error = fields.sub_object(fields.parse_object(content), "error") or {}
        code, message = fields.text(error, "code"), fields.text(error, "message")
        advice = fields.number(error, "retry_after_seconds")
    except ProtocolError:  # a proxy's page, say
        code, message, advice = "", "", None
    if advice is None:
        advice = _retry_after(headers.get("Retry-After"))
    return error_from(
        code,
        message or f"the server answered with HTTP {status_code}",
        status_code=status_code,
        retry_after=advice,
        request_id=headers.get("X-Request-Id"),
    )


def of_event(event: Event) -> CloudSandboxError:
    """Make the exception for a stream that ends with an ``error`` event."""
    return of_object(fields.sub_object(fields.parse_object(event.data), "error") or {})


def of_object(error: fields.Object) -> CloudSandboxError:
    """Make the exception for an error that is part of an answer."""
    return error_from(
        fields.text(error, "code"),
        fields.text(error, "message") or "the server broke off",
        status_code=None,
        retry_after=fields.number(error, "retry_after_seconds"),
    )


def _retry_after(value: str | None) -> float | None:
    """Read a Retry-After header in seconds; a date, which we never send, is no advice."""
    return float(value) if value and value.isdecimal() and value.isascii() else None
