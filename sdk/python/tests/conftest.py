from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cloud_sandbox import Client, Sandbox

from .flavours import FLAVOURS, Flavour, flavour
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


@pytest.fixture(scope="session", params=FLAVOURS)
def sdk(request: pytest.FixtureRequest) -> Iterator[Flavour]:
    """Run a test once for each flavour."""
    with flavour(request.param) as sdk:
        yield sdk


@pytest.fixture
def sandbox_at(sdk: Flavour) -> Iterator[Callable[[str], Sandbox]]:
    """Make Sandbox objects for a server without asking it."""
    with ExitStack() as stack:
        yield lambda url: sdk.Sandbox(
            stack.enter_context(sdk.Client(url, token="test-token")), SANDBOX_ID, owns_client=False
        )


# On a real server.


@pytest.fixture(scope="module")
def client(sdk: Flavour) -> Iterator[Client]:
    user = None if os.environ.get("CLOUD_SANDBOX_API_KEY") else f"sdk-{uuid.uuid4().hex[:8]}"
    with sdk.Client(user_id=user) as client:
        yield client


@pytest.fixture(scope="module")
def sandbox(sdk: Flavour, client: Client) -> Iterator[Sandbox]:
    with sdk.Sandbox.create(client=client) as sandbox:
        yield sandbox


@pytest.fixture
def folder(sandbox: Sandbox) -> str:
    path = f"/workspace/{uuid.uuid4().hex}"
    sandbox.files.make_dir(path)
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CLOUD_SANDBOX_URL"):
        return
    skip = pytest.mark.skip(reason="CLOUD_SANDBOX_URL is not set")
    for item in items:
        if item.get_closest_marker("integration"):
            item.add_marker(skip)
