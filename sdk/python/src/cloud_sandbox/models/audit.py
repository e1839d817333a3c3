"""The audit log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class AuditEntry:
    """Who did what in your tenant, and what came of it.

    Attributes:
        at: when it was answered, in UTC.
        user: of a token, ``"key:ID"`` of an API key, ``"signed-url"``,
            ``"operator"``, or ``"system"`` for what nobody asked for.
        role: of the user; ``None`` for what has none.
        key_id: the API key that was used; ``None`` for another credential.
        operation: what was asked for, such as ``"createSession"``.
        target: what it made, changed or was about; ``None`` for nothing.
        sandbox_id: the Sandbox that it was about.
        detail: more of it, such as the cause of an end.
        remote: the address that the request came from.
        request_id: as ``X-Request-Id`` told it.
        status: the HTTP status of the answer; ``None``: there was no request.
        code: of the error; ``None`` when it went well.
        outcome: ``"ok"``, ``"denied"`` or ``"failed"``.
        hash: covers the entry and all before it; by it the operator finds it.
    """

    at: datetime | None = None
    user: str = ""
    role: str | None = None
    key_id: str | None = None
    operation: str = ""
    target: str | None = None
    sandbox_id: str | None = None
    detail: str | None = None
    remote: str | None = None
    request_id: str | None = None
    status: int | None = None
    code: str | None = None
    outcome: str = ""
    hash: str = ""
