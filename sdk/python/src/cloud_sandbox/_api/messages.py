"""Messages of a WebSocket to a process."""

from __future__ import annotations

import json
from dataclasses import dataclass

from cloud_sandbox.errors import CloudSandboxError
from cloud_sandbox.models import ProcessInfo, TerminalSize

from . import failures, fields
from .processes import info_of


@dataclass(frozen=True)
class Message:
    """What the server says beside output.

    Attributes:
        type: ``"start"``, ``"dropped"``, ``"end"``, ``"error"`` or another word
            of a newer server.
        offset: where the output is.
        process: the process, with ``"start"`` and ``"end"``.
        error: why what was sent changed nothing.
    """

    type: str
    offset: int
    process: ProcessInfo | None
    error: CloudSandboxError | None


def parse(text: str) -> Message:
    """Decode a text message."""
    obj = fields.parse_object(text)
    process, error = fields.sub_object(obj, "process"), fields.sub_object(obj, "error")
    offset = fields.integer(obj, "next_offset")
    return Message(
        type=fields.text(obj, "type"),
        offset=(fields.integer(obj, "offset") or 0) if offset is None else offset,
        process=None if process is None else info_of(process),
        error=None if error is None else failures.of_object(error),
    )


def resize(size: TerminalSize) -> str:
    """Ask for another size."""
    return json.dumps({"type": "resize", "cols": size.cols, "rows": size.rows})


def signal(name: str | int) -> str:
    """Ask for a signal."""
    return json.dumps({"type": "signal", "signal": name})


def eof() -> str:
    """End the input."""
    return json.dumps({"type": "eof"})
