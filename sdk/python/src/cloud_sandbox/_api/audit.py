"""The audit log."""

from __future__ import annotations

from collections.abc import Mapping

from cloud_sandbox.models import AuditEntry

from . import fields
from .call import Answer, Call, get
from .records import records


def page(asked: Mapping[str, str | None]) -> Call[tuple[list[AuditEntry], str]]:
    """Ask for a page of the log, and for the cursor of the next page."""
    return get("/api/v1/audit", _page, {name: value for name, value in asked.items() if value})


def _page(answer: Answer) -> tuple[list[AuditEntry], str]:
    obj = answer.json()
    return records(AuditEntry, obj, "entries"), fields.text(obj, "next_cursor")
