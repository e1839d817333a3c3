from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cloud_sandbox import Client, Sandbox

from .server import Answer, Server

SANDBOX_ID = "i0123456789abcdefghij"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("integration") is None:
        monkeypatch.delenv("CLOUD_SANDBOX_URL", raising=False)
        monkeypatch.delenv("CLOUD_SANDBOX_API_KEY", raising=False)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    """Start servers that end with the test."""
    with ExitStack() as stack:
        yield lambda answer: stack.enter_context(Server(answer))


@pytest.fixture
def sandbox_at() -> Iterator[Callable[[str], Sandbox]]:
    """Make Sandbox objects for a server without asking it."""
    with ExitStack() as stack:
        yield lambda url: Sandbox(
            stack.enter_context(Client(url, token="test-token")), SANDBOX_ID, owns_client=False
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CLOUD_SANDBOX_URL"):
        return
    skip = pytest.mark.skip(reason="CLOUD_SANDBOX_URL is not set")
    for item in items:
        if item.get_closest_marker("integration"):
            item.add_marker(skip)
