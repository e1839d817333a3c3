"""API keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class PreviousSecret:
    """The secret that an API key had before it was rotated, while it is valid.

    Attributes:
        hint: its last four characters.
        valid_until: until when it is valid, in UTC.
        last_used_at: when this secret was used last, in UTC, to half a minute;
            ``None`` if it was not.
    """

    hint: str = ""
    valid_until: datetime | None = None
    last_used_at: datetime | None = None


@dataclass(frozen=True)
class KeyInfo:
    """An API key.

    Attributes:
        key_id: its ID, which is no secret.
        name: what it is for.
        role: ``"viewer"``, ``"user"``, ``"admin"``, ``"owner"`` or ``"operator"``.
        scopes: what it may do.
        hint: the last four characters of the secret.
        created_by: the user who made it, or a key of theirs; ``None`` if nobody
            did, as for one that was made on the server.
        key: the secret, in the answer to its making or rotation and never
            again; else ``None``.
        created_at: when it was made, in UTC.
        expires_at: until when it is valid, in UTC; ``None`` for ever.
        last_used_at: when it was used last, in UTC, to half a minute; ``None``
            if it was not.
        previous: the secret before it was rotated, while it is valid; else
            ``None``.
    """

    key_id: str
    name: str = ""
    role: str = ""
    scopes: tuple[str, ...] = ()
    hint: str = ""
    created_by: str | None = None
    key: str | None = field(default=None, repr=False)
    created_at: datetime | None = None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    previous: PreviousSecret | None = None
