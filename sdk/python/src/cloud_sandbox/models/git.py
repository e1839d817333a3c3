"""Repositories of git, as code in the Sandbox says they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GitCredentials:
    """Credentials for one call; they are stored nowhere.

    They are sent to the host of the repository's URL and to no other. A pull and
    a push take the URL from the repository, which code in the Sandbox may have
    changed: say ``host`` to be sure.

    Attributes:
        password: a password or token.
        username: ``None`` for ``git``, which does for tokens.
        host: the only host that may get them, with its port if it has one.
            ``None`` for the URL's.
    """

    password: str = field(repr=False)
    username: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class GitHead:
    """Where a repository is.

    Attributes:
        path: its root.
        branch: ``None`` when no branch is checked out.
        commit: ``None`` before the first.
    """

    path: str
    branch: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class GitFile:
    """A file that is not as in the last commit.

    Attributes:
        path: relative to the repository's root.
        index: what is staged: ``"unmodified"``, ``"modified"``,
            ``"type_changed"``, ``"added"``, ``"deleted"``, ``"renamed"``,
            ``"copied"``, ``"unmerged"`` or ``"untracked"``.
        worktree: what is not staged, in the same words.
        original_path: where it was, if it was renamed or copied.
    """

    path: str
    index: str = ""
    worktree: str = ""
    original_path: str | None = None


@dataclass(frozen=True)
class GitStatus:
    """What has changed in a repository; iterate over it for each file.

    Attributes:
        path: its root.
        branch: ``None`` when no branch is checked out.
        commit: ``None`` before the first.
        upstream: what the branch follows; ``None`` if nothing.
        ahead: commits that the upstream has not.
        behind: commits that the branch has not.
        clean: nothing has changed.
        files: those that are not as in the last commit.
        truncated: there are more files.
    """

    path: str
    branch: str | None = None
    commit: str | None = None
    upstream: str | None = None
    ahead: int = 0
    behind: int = 0
    clean: bool = False
    files: tuple[GitFile, ...] = ()
    truncated: bool = False

    def __iter__(self) -> Iterator[GitFile]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


@dataclass(frozen=True)
class GitBranch:
    """A branch.

    Attributes:
        name: its name.
        commit: its last commit.
        remote: it is one of a remote, as it was when last fetched.
        upstream: what it follows; ``None`` if nothing.
    """

    name: str
    commit: str = ""
    remote: bool = False
    upstream: str | None = None


@dataclass(frozen=True)
class GitBranches:
    """The branches of a repository; iterate over it for each.

    Attributes:
        path: its root.
        current: the one that is checked out; ``None`` if none is.
        branches: its own, and those known of its remotes.
        truncated: there are more.
    """

    path: str
    current: str | None = None
    branches: tuple[GitBranch, ...] = ()
    truncated: bool = False

    def __iter__(self) -> Iterator[GitBranch]:
        return iter(self.branches)

    def __len__(self) -> int:
        return len(self.branches)


@dataclass(frozen=True)
class GitPull:
    """What a pull came to.

    Attributes:
        path: the repository's root.
        branch: ``None`` when no branch is checked out.
        commit: where it is now.
        updated: something was new.
    """

    path: str
    branch: str | None = None
    commit: str | None = None
    updated: bool = False


@dataclass(frozen=True)
class GitPush:
    """What a push came to.

    Attributes:
        path: the repository's root.
        branch: what was pushed.
        remote: where to.
        commit: where the remote's branch is now.
    """

    path: str
    branch: str = ""
    remote: str = ""
    commit: str = ""
