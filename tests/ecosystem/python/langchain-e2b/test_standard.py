"""LangChain's suite for sandboxes, over langchain-e2b as it is, and over our backend."""

from __future__ import annotations

from collections.abc import Iterator

import cloud_sandbox
import e2b
import pytest
from cloud_sandbox.deepagents import SandboxBackend
from langchain_e2b import E2BSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestE2B(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[E2BSandbox]:
        with e2b.Sandbox.create() as sandbox:
            yield E2BSandbox(sandbox=sandbox)


class TestOurs(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[SandboxBackend]:
        with cloud_sandbox.Sandbox.create() as sandbox:
            yield SandboxBackend(sandbox)
