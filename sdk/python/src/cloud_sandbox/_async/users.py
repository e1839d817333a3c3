"""Users of a tenant."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Literal

from cloud_sandbox._api import users
from cloud_sandbox.models import UserInfo

if TYPE_CHECKING:
    from .client import AsyncClient

__all__ = ["AsyncUsers"]


class AsyncUsers:
    """The users of your tenant, for its admins and owners: ``client.users``."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(
        self, *, state: Literal["active", "suspended", "removed"] | None = None
    ) -> builtins.list[UserInfo]:
        """Return users, by ID.

        Args:
            state: only these. Default: all but those who were removed.

        Raises:
            PermissionDeniedError: you are no admin, or your key has not the
                scope ``users``.
        """
        asked: dict[str, str | None] = {"state": state}
        found: builtins.list[UserInfo] = []
        while True:
            page, cursor = await self._client.call(users.page(asked))
            found.extend(page)
            if not cursor:
                return found
            asked["cursor"] = cursor

    async def get(self, user: UserInfo | str) -> UserInfo:
        """Return a user.

        Args:
            user: the user, or their ID.

        Raises:
            NotFoundError: the user does not exist.
        """
        return await self._client.call(users.look(users.id_of(user)))

    async def add(
        self,
        user: UserInfo | str,
        *,
        role: Literal["viewer", "user", "admin", "owner", "operator"] | None = None,
        name: str | None = None,
        email: str | None = None,
    ) -> UserInfo:
        """Invite a user before a token of theirs comes, or have one back.

        Args:
            user: the ID that their tokens will say, ``"NAME:SUB"`` for a user of
                the identity provider NAME; or who was removed.
            role: what they may do, from the first on. Default: what their
                tokens say.
            name: for people.
            email: address for display; no mail is sent to it.

        Raises:
            ConflictError: there is such a user already.
            PermissionDeniedError: the role is above yours.
            InvalidRequestError: a value breaks a rule.
        """
        return await self._client.call(
            users.add(users.id_of(user), role=role, name=name, email=email)
        )

    async def update(
        self,
        user: UserInfo | str,
        *,
        role: Literal["viewer", "user", "admin", "owner", "operator", "credential"] | None = None,
        state: Literal["active", "suspended"] | None = None,
        name: str | None = None,
        email: str | None = None,
    ) -> UserInfo:
        """Change, suspend or resume a user, at once for their tokens and keys.

        Args:
            user: the user, or their ID.
            role: takes the place of what an identity provider says of them, and
                bounds their keys; ``"credential"`` takes it back.
            state: while ``"suspended"``, their tokens and the API keys that they
                made are refused.
            name: for people; ``""`` for none.
            email: the same.

        Raises:
            NotFoundError: the user does not exist.
            PermissionDeniedError: the user is of a role above yours, or would be.
            ConflictError: you would suspend yourself, or leave the tenant
                without its last owner.
        """
        return await self._client.call(
            users.update(users.id_of(user), role=role, state=state, name=name, email=email)
        )

    async def remove(self, user: UserInfo | str) -> None:
        """Remove a user and revoke the API keys that they made.

        Their tokens are refused, those to come too, until somebody adds them
        again.

        Args:
            user: the user, or their ID.

        Raises:
            NotFoundError: the user does not exist.
            PermissionDeniedError: the user is of a role above yours.
            ConflictError: it is you, or the last owner of the tenant.
        """
        await self._client.call(users.remove(users.id_of(user)))
