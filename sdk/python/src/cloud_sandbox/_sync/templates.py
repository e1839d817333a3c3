# Generated from _async by scripts/generate_sync.py: edit it there.
"""Templates and how they are built."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from cloud_sandbox._api import templates
from cloud_sandbox._api.call import Call, Path
from cloud_sandbox.errors import ConflictError, InternalError
from cloud_sandbox.models import (
    BuildInfo,
    BuildLine,
    RemovedTemplates,
    TemplateFile,
    TemplateInfo,
)

from . import _io
from ._io import Data
from .following import Follower

if TYPE_CHECKING:
    from .client import Client

__all__ = ["BuildLog", "Templates"]


class Templates:
    """What Sandboxes can start from: ``client.templates``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def build(
        self,
        template: str,
        source: str | None = None,
        *,
        dockerfile: Path | None = None,
        context: Path | None = None,
        build_args: Mapping[str, str] | None = None,
        archive: Data | None = None,
        packages: Sequence[str] | None = None,
        files: Sequence[TemplateFile] | None = None,
        env: Mapping[str, str] | None = None,
        start: str | None = None,
        ready: str | None = None,
        bare: bool = False,
        force: bool = False,
        on_log: Callable[[str], object] | None = None,
        idempotency_key: str | None = None,
    ) -> BuildInfo:
        """Build a Template and return once it is ready.

        Leaving early, by an exception, does not cancel the build: see
        :meth:`cancel`.

        Args:
            template: ``NAME`` or ``NAME:TAG``; a name alone means ``latest``.
            source: ``"oci:REF"``, an image of a registry, as it is but for
                ``packages``; ``"debian:SUITE"``, packages of a suite; or
                ``"tar:"``, the ``archive``.
            dockerfile: path of a Dockerfile here, in place of ``source``,
                ``packages``, ``files``, ``env`` and ``bare``. Its ``CMD`` and
                ``ENTRYPOINT`` are the start command unless ``start`` is.
            context: the folder that it copies from, without what its
                ``.dockerignore`` names. Default: the one that it is in.
            build_args: values for its ``ARG``.
            archive: a root filesystem, or what ``docker save`` wrote, as a tar
                file, plain or compressed with gzip or zstd, of at most 4 GiB;
                data as for ``files.write``.
            packages: more packages, for ``"debian:SUITE"`` and images.
            files: files to put in; those of more than 1 MiB together are sent as
                an archive.
            env: environment of processes in its Sandboxes.
            start: shell command that runs in the background of every Sandbox.
            ready: shell command that must succeed before a Sandbox is handed
                out.
            bare: leave an image as it is.
            force: build it even if it exists.
            on_log: called with each line of the log as it comes.
            idempotency_key: build once for this key; archives may have 16 MiB
                then. Default: a new key, or none with an archive.

        Raises:
            InvalidRequestError: a value breaks a rule, or cannot be built; for a
                Dockerfile it names the line.
            OSError: the Dockerfile or its context cannot be read.
            ExhaustedError: too many builds wait or run, or the quota
                ``template_mb`` is used up or has less left than the image takes.
            ConflictError: it was cancelled.
            CloudSandboxError: it failed; the class is that of the reason.
        """
        info = self.start_build(
            template,
            source,
            dockerfile=dockerfile,
            context=context,
            build_args=build_args,
            archive=archive,
            packages=packages,
            files=files,
            env=env,
            start=start,
            ready=ready,
            bare=bare,
            force=force,
            idempotency_key=idempotency_key,
        )
        with self.follow_build(info.build_id) as log:
            for line in log:
                if on_log is not None:
                    _io.tell(on_log, line.text)
        return _checked(log.info or self.get_build(info.build_id))

    def start_build(
        self,
        template: str,
        source: str | None = None,
        *,
        dockerfile: Path | None = None,
        context: Path | None = None,
        build_args: Mapping[str, str] | None = None,
        archive: Data | None = None,
        packages: Sequence[str] | None = None,
        files: Sequence[TemplateFile] | None = None,
        env: Mapping[str, str] | None = None,
        start: str | None = None,
        ready: str | None = None,
        bare: bool = False,
        force: bool = False,
        idempotency_key: str | None = None,
    ) -> BuildInfo:
        """Queue a build and return at once; the arguments are those of :meth:`build`."""
        return self._client.call(
            templates.build(
                template,
                source,
                dockerfile=dockerfile,
                context=context,
                build_args=build_args,
                archive=archive,
                packages=packages,
                files=files,
                env=env,
                start=start,
                ready=ready,
                bare=bare,
                force=force,
                key=idempotency_key,
            )
        )

    def list(self) -> builtins.list[TemplateInfo]:
        """Return your own and the server's, by name and tag."""
        return self._client.call(templates.every())

    def get(self, template: str) -> TemplateInfo:
        """Return what a name means, with every version.

        Args:
            template: ``NAME``, ``NAME:TAG`` or ``NAME@VERSION``.

        Raises:
            NotFoundError: there is none.
        """
        return self._client.call(templates.look(template))

    def delete(self, template: str) -> RemovedTemplates:
        """Remove a Template and return the names that are gone and the disk freed.

        Args:
            template: ``NAME`` for all of it, ``NAME:TAG`` for the tag alone,
                ``NAME@VERSION`` for the version and its tags.

        Raises:
            ConflictError: Sandboxes run from it.
            PermissionDeniedError: it is the server's own.
            NotFoundError: there is none.
        """
        return self._client.call(templates.delete(template))

    def builds(self) -> builtins.list[BuildInfo]:
        """Return your builds, newest first; of those that are over, the last 50."""
        return self._client.call(templates.builds())

    def get_build(self, build_id: str) -> BuildInfo:
        """Return what a build is now; one that failed raises nothing.

        Raises:
            NotFoundError: there is none.
        """
        return self._client.call(templates.look_at_build(build_id))

    def cancel(self, build_id: str) -> BuildInfo:
        """Cancel a build, and return once nothing of it is left.

        Raises:
            ConflictError: it is over.
        """
        return self._client.call(templates.cancel(build_id))

    def follow_build(self, build_id: str, start: int = 0) -> BuildLog:
        """Return the lines of a build's log as they come, until it has ended.

        When the connection breaks, it goes on where it was.

        Args:
            build_id: the build.
            start: ``next_offset`` of the last line that is known.
        """
        return BuildLog(self._client, build_id, start)


def _checked(info: BuildInfo) -> BuildInfo:
    if info.error is not None:
        raise info.error
    if info.state == "cancelled":
        raise ConflictError("the build was cancelled")
    if info.state != "ready":
        raise InternalError(f"the build ended {info.state}")
    return info


class BuildLog:
    """The lines of a build's log; see ``templates.follow_build``."""

    def __init__(self, client: Client, build_id: str, start: int) -> None:
        self._build_id = build_id
        self._offset = start
        self._info: BuildInfo | None = None
        self._ended = False
        self._follower = Follower(client, self._ask)

    def _ask(self) -> Call[None]:
        return templates.follow(self._build_id, self._offset)

    @property
    def info(self) -> BuildInfo | None:
        """The build, as it was at the beginning or at its end."""
        return self._info

    def __iter__(self) -> BuildLog:
        return self

    def __next__(self) -> BuildLine:
        while not self._ended:
            event = self._follower.next()
            if event is None:
                break
            if event.name in ("start", "end"):
                self._info = templates.build_of(event)
                self._ended = event.name == "end"
                continue
            line = templates.line_of(event)
            self._offset = line.next_offset
            return line
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Stop following; the build goes on."""
        self._follower.close()

    def __enter__(self) -> BuildLog:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()
