"""The server itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from cloud_sandbox.models import Stats, Usage

from . import fields
from .call import Answer, Call, get
from .records import record, records


def stats() -> Call[Stats]:
    """Ask for present numbers."""
    return get("/api/v1/sandbox/stats", _stats)


def usage(
    first: date | None,
    end: date | None,
    group_by: Sequence[str],
    sandbox_id: str | None,
    cursor: str | None,
) -> Call[tuple[list[Usage], str]]:
    """Ask for a page of what was used, and for the cursor of the next page."""
    asked = {
        "from": first.isoformat() if first else "",
        "to": end.isoformat() if end else "",
        "group_by": ",".join(group_by),
        "sandbox_id": sandbox_id or "",
        "cursor": cursor or "",
    }
    query = {name: value for name, value in asked.items() if value}
    return get("/api/v1/usage", _usage_page, query)


def _usage_page(answer: Answer) -> tuple[list[Usage], str]:
    obj = answer.json()
    return records(Usage, obj, "rows"), fields.text(obj, "next_cursor")


def _stats(answer: Answer) -> Stats:
    obj = answer.json()
    counts = fields.sub_object(obj, "sandboxes") or {}
    sandboxes = {state: fields.integer(counts, state) or 0 for state in counts}
    return record(Stats, obj, sandboxes=sandboxes)
