"""Users of a tenant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class UserInfo:
    """Somebody who acts for a tenant.

    Attributes:
        user_id: their ID, as their tokens say it.
        name: for people; ``None`` if nobody said.
        email: the same.
        role: ``"viewer"``, ``"user"``, ``"admin"``, ``"owner"`` or
            ``"operator"``; ``None`` while only their first token can say.
        role_given: whether somebody here gave them the role. Else it is what
            their last token said.
        state: ``"active"``, ``"suspended"`` or ``"removed"``.
        source: how the record came to be: ``"token"`` of this server, ``"oidc"``
            or ``"invited"``.
        issuer: the name of their identity provider; ``None`` without one.
        created_at: when the record was made, in UTC.
        last_seen_at: when a token of theirs last came, in UTC, to a minute;
            ``None`` if none did.
    """

    user_id: str
    name: str | None = None
    email: str | None = None
    role: str | None = None
    role_given: bool = False
    state: str = ""
    source: str = ""
    issuer: str | None = None
    created_at: datetime | None = None
    last_seen_at: datetime | None = None
