"""What can go wrong, one class for each error code of the API.

Every exception that this package raises for a failed call is a
:class:`CloudSandboxError`. Its class says what to do about it; the message is
the server's own sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "AuthenticationError",
    "CloudSandboxError",
    "ConflictError",
    "ConnectionFailedError",
    "ExhaustedError",
    "ForkError",
    "InternalError",
    "InvalidRequestError",
    "NotFoundError",
    "PermissionDeniedError",
    "ProtocolError",
    "SandboxTimeoutError",
    "TooLargeError",
    "UnavailableError",
    "UnsupportedError",
]


class CloudSandboxError(Exception):
    """A call that failed.

    Attributes:
        message: one sentence for people.
        code: the API's error code, such as ``"not_found"``; empty when the
            server gave no answer, or none that makes sense.
        status_code: the HTTP status; ``None`` when there was no answer.
        retry_after: the seconds that the server asks to wait before another
            try; ``None`` when it gives no advice.
        request_id: names the request in the server's log; ``None`` when the
            server gave no name.
    """

    code: str = ""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status_code: int | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = type(self).code if code is None else code
        self.status_code = status_code
        self.retry_after = retry_after
        self.request_id = request_id

    def __str__(self) -> str:
        return self.message


class InvalidRequestError(CloudSandboxError):
    """The request breaks a rule; the message says what to change."""

    code = "invalid"


class AuthenticationError(CloudSandboxError):
    """The server does not know who is asking: no token, or not a valid one."""

    code = "unauthenticated"


class PermissionDeniedError(CloudSandboxError):
    """The caller is known, but may not do that."""

    code = "denied"


class NotFoundError(CloudSandboxError):
    """There is no such Sandbox or file, or it belongs to somebody else."""

    code = "not_found"


class ConflictError(CloudSandboxError):
    """The state has moved on: look again, then decide."""

    code = "conflict"


class TooLargeError(CloudSandboxError):
    """What was sent is larger than the server takes."""

    code = "too_large"


class ExhaustedError(CloudSandboxError):
    """A quota or the server's capacity is used up; see ``retry_after``."""

    code = "exhausted"


class UnsupportedError(CloudSandboxError):
    """The server cannot do that, and asking again does not help."""

    code = "unsupported"


class UnavailableError(CloudSandboxError):
    """A part of the server is away; try again in a moment."""

    code = "unavailable"


class SandboxTimeoutError(CloudSandboxError, TimeoutError):
    """The call took too long, by the server's clock or by the client's.

    Code that runs longer than its ``timeout_seconds`` does not raise this: its
    :class:`~cloud_sandbox.Execution` has the status ``"timeout"``.
    """

    code = "timeout"


class InternalError(CloudSandboxError):
    """The server failed in a way that is the server's fault."""

    code = "internal"


class ConnectionFailedError(CloudSandboxError, ConnectionError):
    """The server could not be reached, or the connection broke.

    When it broke after the request was sent, the server may have acted on it.

    Attributes:
        sent: that may be so, of this try or an earlier one.
    """

    sent: bool = False


class ForkError(CloudSandboxError):
    """Some of the forks that were asked for do not run, and some do.

    When none runs, the error of the first is raised instead.

    Attributes:
        sandboxes: those that run, as ``fork`` would have returned them. End them
            if they are no use without the others.
        errors: why the others do not.
    """

    def __init__(self, sandboxes: Sequence[Any], errors: Sequence[CloudSandboxError]) -> None:
        first = errors[0]
        super().__init__(
            f"{len(errors)} of {len(errors) + len(sandboxes)} forks do not run: {first}",
            code=first.code,
            retry_after=first.retry_after,
        )
        self.sandboxes = tuple(sandboxes)
        self.errors = tuple(errors)


class ProtocolError(CloudSandboxError):
    """The answer is not one that this version of the SDK understands."""


_BY_CODE: dict[str, type[CloudSandboxError]] = {
    cls.code: cls
    for cls in (
        InvalidRequestError,
        AuthenticationError,
        PermissionDeniedError,
        NotFoundError,
        ConflictError,
        TooLargeError,
        ExhaustedError,
        UnsupportedError,
        UnavailableError,
        SandboxTimeoutError,
        InternalError,
    )
}

# What a status means when the body is not the API's: a proxy's page, say.
_CODE_BY_STATUS: dict[int, str] = {
    400: "invalid",
    401: "unauthenticated",
    403: "denied",
    404: "not_found",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    429: "exhausted",
    501: "unsupported",
    502: "unavailable",
    503: "unavailable",
    504: "timeout",
}


def error_from(
    code: str,
    message: str,
    *,
    status_code: int | None,
    retry_after: float | None,
    request_id: str | None = None,
) -> CloudSandboxError:
    """Make the exception for an API error.

    An unknown or empty ``code`` is judged by ``status_code``, so that a newer
    server or a proxy in between still gives a useful class.
    """
    cls = _BY_CODE.get(code)
    if cls is None and status_code is not None:
        fallback = _CODE_BY_STATUS.get(status_code) or (
            "internal" if status_code >= 500 else "invalid"
        )
        cls = _BY_CODE[fallback]
    return (cls or InternalError)(
        message,
        code=code or None,
        status_code=status_code,
        retry_after=retry_after,
        request_id=request_id,
    )
