"""Secrets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class SecretInfo:
    """A secret, whose value nobody can read again.

    Attributes:
        name: its name.
        description: what it is for.
        hosts: the only hosts that it may be sent to; none: any.
        created_at: when it was made, in UTC.
        updated_at: when it was replaced last, in UTC.
    """

    name: str
    description: str = ""
    hosts: tuple[str, ...] = ()
    created_at: datetime | None = None
    updated_at: datetime | None = None
