"""Marks the tests of langchain-tests 1.1.9 that deepagents 0.7 itself does not pass."""

from __future__ import annotations

import pytest

# Of BaseSandbox of deepagents 0.7, which the suite does not know yet. That of 0.6 passes:
# the suite runs with it in ../langchain-e2b.
FAIL = {
    name: reason
    for reason, names in {
        "glob returns absolute paths of files": [
            "test_glob",
            "test_glob_basic_pattern",
            "test_glob_with_directories",
            "test_glob_hidden_files_explicitly",
            "test_glob_with_character_class",
            "test_glob_with_question_mark",
        ],
        "write replaces a file": ["test_write_existing_file_fails"],
    }.items()
    for name in names
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := FAIL.get(item.name):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
