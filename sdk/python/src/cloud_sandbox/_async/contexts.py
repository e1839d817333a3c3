"""The interpreters of a Sandbox."""

from __future__ import annotations

import builtins

from cloud_sandbox._api import contexts
from cloud_sandbox._api.call import Path
from cloud_sandbox.models import ContextInfo

from .client import AsyncClient

__all__ = ["AsyncContexts"]


class AsyncContexts:
    """The interpreters of a Sandbox that keep their state: ``sandbox.contexts``.

    Code without a context runs in the default one of its language, so most
    programs need no other. A method that takes a context takes its ID too.
    """

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._client = client
        self._sandbox_id = sandbox_id

    async def create(
        self,
        language: str = "python",
        *,
        cwd: Path | None = None,
        user: str | None = None,
        idempotency_key: str | None = None,
    ) -> ContextInfo:
        """Make an interpreter with variables of its own; it starts when first used.

        Args:
            language: what it runs: ``"python"``, ``"javascript"``, ``"typescript"``,
                ``"bash"``, or ``"r"`` and ``"java"`` where the Template has them.
            cwd: where it starts. Default: ``/workspace``.
            user: whose process it is. Default: the Sandbox's user.
            idempotency_key: make one for this key. Default: a new key.

        Raises:
            InvalidRequestError: a language that keeps no state.
            ExhaustedError: the Sandbox has 32 already.
        """
        return await self._client.call(
            contexts.create(self._sandbox_id, language, cwd=cwd, user=user, key=idempotency_key)
        )

    async def list(self) -> builtins.list[ContextInfo]:
        """Return all of them; default ones also before they are used."""
        return await self._client.call(contexts.every(self._sandbox_id))

    async def restart(self, context: ContextInfo | str) -> ContextInfo:
        """Give it a fresh interpreter; what runs in it ends.

        Raises:
            NotFoundError: the context does not exist.
        """
        return await self._client.call(contexts.restart(self._sandbox_id, context_id(context)))

    async def interrupt(self, context: ContextInfo | str) -> bool:
        """End what runs in it, as Ctrl-C would; its variables stay.

        Returns:
            False when nothing ran.

        Raises:
            NotFoundError: the context does not exist.
        """
        return await self._client.call(contexts.interrupt(self._sandbox_id, context_id(context)))

    async def delete(self, context: ContextInfo | str) -> None:
        """End it with what runs in it. A default one is fresh when next used.

        Raises:
            NotFoundError: the context does not exist.
        """
        await self._client.call(contexts.delete(self._sandbox_id, context_id(context)))


def context_id(context: ContextInfo | str) -> str:
    """Return the ID of a context."""
    return context if isinstance(context, str) else context.context_id
