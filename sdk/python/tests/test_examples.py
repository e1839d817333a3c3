"""The examples, run as a reader would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

# What the output of each must hold, in this order.
SHOWS = {
    "hello.py": ["Hello from", "sum: 6", "0644 8 numbers.csv"],
    "streaming.py": ["step 0", "step 2", "status: ok", "status: timeout"],
    "state.py": ["sum: 8", "failed: KeyError 'coffee'", "elsewhere: False"],
    "many.py": ["ann: passed", "bob: error", "eve: timeout"],
    "files.py": ["unpacked: 2", "main.py:1: def main():", "works", "taken out: ['main.py', 'no"],
    "processes.py": [
        "hello from inside",
        "step 3",
        "build: ok 0",
        "/workspace/app test",
        "log: ",
        '"GET / HTTP/1.1" 200',
        "ended with 143",
    ],
    "saving.py": [
        "it is paused",
        "words: 3",
        'sorted(words) -> \'["fork", "pause", "resume"]\'',
        "no_such_name -> error",
        "back again: ['pause', 'resume', 'fork']",
    ],
    "terminal.py": ["the same for both: True", "40 120", "42", "exit code: 7"],
    "volumes.py": ["the other one reads: pause resume fork", "later: 3", "it holds 1 file"],
    "watch.py": ["replaced: 2", "created /workspace/src/a.py", "created /workspace/src/b.py"],
}


def test_each_example_is_tested_and_listed() -> None:
    assert sorted(SHOWS) == sorted(file.name for file in EXAMPLES.glob("*.py"))
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"({name})" in listed for name in SHOWS)


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted(SHOWS))
def test_an_example_works(name: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    rest = done.stdout
    for text in SHOWS[name]:
        assert text in rest, done.stdout
        rest = rest.split(text, 1)[1]
