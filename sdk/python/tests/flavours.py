"""The flavours of the SDK behind one face, so that each test runs on all of them.

The asynchronous ones run in a thread with an event loop; their objects are wrapped
in ones that wait for every answer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

from anyio.from_thread import BlockingPortal, start_blocking_portal

import cloud_sandbox
from cloud_sandbox import AsyncClient, AsyncSandbox, Client, Sandbox

FLAVOURS = ("sync", "asyncio")


@dataclass(frozen=True)
class Flavour:
    """The classes of one flavour."""

    name: str
    Client: type[Client]
    Sandbox: type[Sandbox]


@contextmanager
def flavour(name: str) -> Iterator[Flavour]:
    if name == "sync":
        yield Flavour(name, Client, Sandbox)
        return
    with start_blocking_portal(name) as portal:
        yield Flavour(
            name,
            cast("type[Client]", Blocking(portal, AsyncClient)),
            cast("type[Sandbox]", Blocking(portal, AsyncSandbox)),
        )


class Blocking:
    """An asynchronous object as a synchronous one."""

    def __init__(self, portal: BlockingPortal, target: Any) -> None:
        self._portal = portal
        self._target = target

    def __getattr__(self, name: str) -> Any:
        name = f"a{name}" if hasattr(self._target, f"a{name}") else name
        return self._wrapped(getattr(self._target, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bare = [_bare(arg) for arg in args]
        call = functools.partial(
            self._target, *bare, **{name: _bare(arg) for name, arg in kwargs.items()}
        )
        return self._wrapped(self._portal.call(call))

    def __iter__(self) -> Iterator[Any]:
        self._target.__aiter__()
        return self

    def __next__(self) -> Any:
        try:
            return self._wrapped(self._portal.call(self._target.__anext__))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        return self._wrapped(self._portal.call(self._target.__aenter__))

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> Any:
        return self._portal.call(self._target.__aexit__, exc_type, exc, tb)

    def __repr__(self) -> str:
        return repr(self._target)

    def _wrapped(self, value: Any) -> Any:
        if type(value) is list:
            return [self._wrapped(item) for item in value]
        ours = type(value).__module__.startswith(f"{cloud_sandbox.__name__}._async")
        if ours or callable(value) or hasattr(value, "__anext__"):
            return Blocking(self._portal, value)
        return value


def _bare(value: Any) -> Any:
    return value._target if isinstance(value, Blocking) else value
