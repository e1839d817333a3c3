"""Repositories of git in a Sandbox."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_sandbox._api import git
from cloud_sandbox._api.call import Path
from cloud_sandbox.models import (
    GitBranches,
    GitCredentials,
    GitHead,
    GitPull,
    GitPush,
    GitStatus,
)

from .client import AsyncClient

__all__ = ["AsyncGit"]


class AsyncGit:
    """Repositories of git: ``sandbox.git``.

    ``path`` is a folder in a repository, below ``/workspace`` if it is not
    absolute. ``user`` is who acts inside; default: the Sandbox's user.
    """

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._client = client
        self._sandbox_id = sandbox_id

    async def clone(
        self,
        url: str,
        path: Path | None = None,
        *,
        branch: str | None = None,
        depth: int | None = None,
        credentials: GitCredentials | None = None,
        user: str | None = None,
        timeout_seconds: float | None = None,
    ) -> GitHead:
        """Clone a repository.

        Args:
            url: https, http, git, ssh, file, or a path in the Sandbox; never
                with credentials in it.
            path: where to: nothing may be there, or an empty folder. Default:
                the last part of the URL.
            branch: a branch or tag. Default: that of the repository.
            depth: only so many commits. Default: all.
            credentials: for this call only.
            user: who acts.
            timeout_seconds: up to 3,600. Default: 300.

        Raises:
            PermissionDeniedError: the credentials are wrong, or missing.
            ConflictError: there is something at ``path``.
            NotFoundError: the repository or branch does not exist.
        """
        return await self._client.call(
            git.clone(
                self._sandbox_id,
                url,
                path,
                branch=branch,
                depth=depth,
                credentials=credentials,
                user=user,
                timeout_seconds=timeout_seconds,
            )
        )

    async def status(self, path: Path = "/workspace", *, user: str | None = None) -> GitStatus:
        """Return the branch and the files that are not as in its last commit.

        Raises:
            NotFoundError: the folder does not exist.
            InvalidRequestError: it is in no repository.
        """
        return await self._client.call(git.status(self._sandbox_id, path, user))

    async def branches(self, path: Path = "/workspace", *, user: str | None = None) -> GitBranches:
        """Return the repository's branches and those known of its remotes."""
        return await self._client.call(git.branches(self._sandbox_id, path, user))

    async def checkout(
        self,
        ref: str,
        path: Path = "/workspace",
        *,
        create: bool = False,
        start: str | None = None,
        user: str | None = None,
    ) -> GitHead:
        """Change to a branch, tag or commit.

        Args:
            ref: where to.
            path: the repository.
            create: make the branch first.
            start: where a branch that is made begins. Default: here.
            user: who acts.

        Raises:
            ConflictError: changes would be overwritten, or the branch is there.
            NotFoundError: the branch, tag or commit does not exist.
        """
        call = git.checkout(self._sandbox_id, path, ref, create=create, start=start, user=user)
        return await self._client.call(call)

    async def add(
        self,
        files: Sequence[Path] | None = None,
        path: Path = "/workspace",
        *,
        user: str | None = None,
    ) -> GitStatus:
        """Stage changes and return the status afterwards.

        Args:
            files: up to 1,000 paths relative to ``path``. Default: every change,
                removals too.
            path: the repository.
            user: who acts.

        Raises:
            NotFoundError: the file does not exist.
        """
        return await self._client.call(git.add(self._sandbox_id, path, files, user))

    async def commit(
        self,
        message: str,
        path: Path = "/workspace",
        *,
        author: tuple[str, str] | None = None,
        all: bool = False,
        allow_empty: bool = False,
        user: str | None = None,
    ) -> GitHead:
        """Commit what is staged; the repository's hooks run.

        Args:
            message: what for.
            path: the repository.
            author: name and email address, also of the committer. Default: what
                git's configuration says.
            all: also what is not staged of files that git knows.
            allow_empty: also when nothing has changed.
            user: who acts.

        Raises:
            ConflictError: no changes to commit, or a hook refused.
        """
        return await self._client.call(
            git.commit(
                self._sandbox_id,
                path,
                message,
                author=author,
                every_change=all,
                allow_empty=allow_empty,
                user=user,
            )
        )

    async def pull(
        self,
        path: Path = "/workspace",
        *,
        remote: str | None = None,
        branch: str | None = None,
        rebase: bool = False,
        credentials: GitCredentials | None = None,
        user: str | None = None,
        timeout_seconds: float | None = None,
    ) -> GitPull:
        """Fetch and merge. What needs a person is a conflict and changes nothing.

        Args:
            path: the repository.
            remote: where from. Default: the upstream's.
            branch: which. Default: the upstream.
            rebase: put own commits on top, instead of merging.
            credentials: for this call only.
            user: who acts.
            timeout_seconds: up to 3,600. Default: 300.

        Raises:
            PermissionDeniedError: the credentials are wrong, or missing.
            ConflictError: it cannot be merged.
        """
        return await self._client.call(
            git.pull(
                self._sandbox_id,
                path,
                remote=remote,
                branch=branch,
                rebase=rebase,
                credentials=credentials,
                user=user,
                timeout_seconds=timeout_seconds,
            )
        )

    async def push(
        self,
        path: Path = "/workspace",
        *,
        remote: str | None = None,
        branch: str | None = None,
        force: bool = False,
        set_upstream: bool = False,
        credentials: GitCredentials | None = None,
        user: str | None = None,
        timeout_seconds: float | None = None,
    ) -> GitPush:
        """Push a branch.

        Args:
            path: the repository.
            remote: where to. Default: ``origin``.
            branch: which. Default: the current one.
            force: also over what the remote has, if that is what was last
                fetched.
            set_upstream: follow the remote's branch from now on.
            credentials: for this call only.
            user: who acts.
            timeout_seconds: up to 3,600. Default: 300.

        Raises:
            PermissionDeniedError: the credentials are wrong, or missing.
            ConflictError: the remote has moved on.
        """
        return await self._client.call(
            git.push(
                self._sandbox_id,
                path,
                remote=remote,
                branch=branch,
                force=force,
                set_upstream=set_upstream,
                credentials=credentials,
                user=user,
                timeout_seconds=timeout_seconds,
            )
        )
