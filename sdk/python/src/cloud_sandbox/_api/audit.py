"""The audit log."""

from __future__ import annotations

from collections.abc import Mapping

from cloud_sandbox.models import AuditEntry

from . import fields
from .call import Answer, Call, get


def page(asked: Mapping[str, str | None]) -> Call[tuple[list[AuditEntry], str]]:
    """Ask for a page of the log, and where the next one begins."""
    return get("/api/v1/audit", _page, {name: value for name, value in asked.items() if value})


def _page(answer: Answer) -> tuple[list[AuditEntry], str]:
    obj = answer.json()
    found = [_entry(item) for item in fields.objects(obj, "entries")]
    return found, fields.text(obj, "next_cursor")


def _entry(obj: fields.Object) -> AuditEntry:
    return AuditEntry(
        at=fields.time(obj, "at"),
        user=fields.text(obj, "user"),
        role=fields.optional_text(obj, "role"),
        key_id=fields.optional_text(obj, "key_id"),
        operation=fields.text(obj, "operation"),
        target=fields.optional_text(obj, "target"),
        sandbox_id=fields.optional_text(obj, "sandbox_id"),
        detail=fields.optional_text(obj, "detail"),
        remote=fields.optional_text(obj, "remote"),
        request_id=fields.optional_text(obj, "request_id"),
        status=fields.integer(obj, "status"),
        code=fields.optional_text(obj, "code"),
        outcome=fields.text(obj, "outcome"),
        hash=fields.text(obj, "hash"),
    )
