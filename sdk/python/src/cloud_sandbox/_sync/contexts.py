# Generated from _async by scripts/generate_sync.py: edit it there.
"""The interpreters of a Sandbox."""

from __future__ import annotations

import builtins

from cloud_sandbox._api import contexts
from cloud_sandbox._api.call import Path
from cloud_sandbox.models import ContextInfo

from .client import Client

__all__ = ["Contexts"]


class Contexts:
    """The interpreters of a Sandbox that keep their state: ``sandbox.contexts``.

    Code without a context runs in the default one of its language, so most
    programs need no other. A method that takes a context takes its ID too.
    """

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client = client
        self._sandbox_id = sandbox_id

    def create(
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
        return self._client.call(
            contexts.create(self._sandbox_id, language, cwd=cwd, user=user, key=idempotency_key)
        )

    def list(self) -> builtins.list[ContextInfo]:
        """Return all of them; default ones also before they are used."""
        return self._client.call(contexts.every(self._sandbox_id))

    def restart(self, context: ContextInfo | str) -> ContextInfo:
        """Give it a fresh interpreter; what runs in it ends.

        Raises:
            NotFoundError: the context does not exist.
        """
        return self._client.call(contexts.restart(self._sandbox_id, context_id(context)))

    def interrupt(self, context: ContextInfo | str) -> bool:
        """End what runs in it, as Ctrl-C would; its variables stay.

        Returns:
            False when nothing ran.

        Raises:
            NotFoundError: the context does not exist.
        """
        return self._client.call(contexts.interrupt(self._sandbox_id, context_id(context)))

    def delete(self, context: ContextInfo | str) -> None:
        """End it with what runs in it. A default one is fresh when next used.

        Raises:
            NotFoundError: the context does not exist.
        """
        self._client.call(contexts.delete(self._sandbox_id, context_id(context)))


def context_id(context: ContextInfo | str) -> str:
    """Return the ID of a context."""
    return context if isinstance(context, str) else context.context_id
