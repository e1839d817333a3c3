# Generated from _async by scripts/generate_sync.py: edit it there.
"""What is asked about a Sandbox from several places."""

from __future__ import annotations

from cloud_sandbox._api import sessions
from cloud_sandbox.models import SandboxInfo

from .client import Client

__all__ = ["is_over", "look"]


def look(client: Client, sandbox_id: str) -> SandboxInfo:
    """Return what a Sandbox is now."""
    return client.call(sessions.look(sandbox_id))


def is_over(info: SandboxInfo) -> bool:
    """Return whether a Sandbox has ended, or soon will have."""
    return info.state in ("stopping", "ended")
