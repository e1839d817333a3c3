from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from cloud_sandbox import Execution, FileEntry, ProtocolError
from cloud_sandbox._api import executions, fields, files


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b"{}",
        b'{"status": 1}',
        b'{"status": "ok", "stdout": []}',
        b'{"status": "ok", "exit_code": "0"}',
        b'{"status": "ok", "exit_code": 0.5}',
        b'{"status": "ok", "exit_code": true}',
        b'{"status": "ok", "error": "e"}',
        b'{"status": "ok", "results": {}}',
        b'{"status": "ok", "results": ["r"]}',
        b'{"status": "ok", "truncated": {"stdout_bytes_dropped": "1"}}',
    ],
)
def test_executions_that_make_no_sense(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        decoded(content)


def test_an_execution_with_the_least() -> None:
    execution = decoded(b'{"status": "ok", "stdout": null, "later": 1}')
    assert execution.ok
    assert not execution.truncated
    assert execution.exit_code is None


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)),
        ("2026-01-02T03:04:05.1Z", datetime(2026, 1, 2, 3, 4, 5, 100_000, timezone.utc)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123_456, timezone.utc)),
        ("2026-01-02T03:04:05+05:30", datetime(2026, 1, 1, 21, 34, 5, tzinfo=timezone.utc)),
        ("", None),
    ],
)
def test_times(text: str, want: datetime | None) -> None:
    assert entry(modified_at=text).modified_at == want


@pytest.mark.parametrize(
    "text",
    [
        "now",
        "2026-01-02",
        "2026-13-02T03:04:05Z",
        "2026-01-02T03:04:05",
        "0001-01-01T00:00:00+23:59",
    ],
)
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ProtocolError):
        entry(modified_at=text)


def entry(**values: Any) -> FileEntry:
    return files.entry(fields.parse_object(json.dumps({"path": "/a", **values})))


def decoded(content: bytes) -> Execution:
    return executions.execution_of(fields.parse_object(content))
