# Generated from _async by scripts/generate_sync.py: edit it there.
"""The audit log."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from cloud_sandbox._api import audit
from cloud_sandbox.models import AuditEntry

if TYPE_CHECKING:
    from .client import Client

__all__ = ["Audit"]

_PAGE_SIZE = 100  # the largest that the server gives


class Audit:
    """Who did what in your tenant, for its admins: ``client.audit``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        actor: str | None = None,
        operation: str | None = None,
        target: str | None = None,
        outcome: Literal["ok", "denied", "failed"] | None = None,
        limit: int | None = None,
    ) -> builtins.list[AuditEntry]:
        """Return entries, newest first.

        Args:
            since: not those before this time, which has a time zone.
            until: only those before this time, which has a time zone.
            actor: only calls of this user, or of the API key with this ID.
            operation: only this operation, such as ``"createSession"``.
            target: only what was done to this, or to the Sandbox with this ID.
            outcome: only what came out so.
            limit: how many at most. Default: all.

        Raises:
            PermissionDeniedError: you are no admin, or your key has not the
                scope ``audit``.
            ValueError: a time has no time zone.
        """
        asked = {
            "since": _text(since),
            "until": _text(until),
            "actor": actor,
            "operation": operation,
            "target": target,
            "outcome": outcome,
        }
        found: builtins.list[AuditEntry] = []
        while limit is None or len(found) < limit:
            size = _PAGE_SIZE if limit is None else min(limit - len(found), _PAGE_SIZE)
            page, cursor = self._client.call(audit.page({**asked, "limit": str(size)}))
            found.extend(page)
            if not cursor:
                break
            asked["cursor"] = cursor
        return found


def _text(at: datetime | None) -> str | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise ValueError("a time needs a time zone: datetime.now(timezone.utc)")
    return at.isoformat()
