from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import cloud_sandbox

ROOT = Path(__file__).parents[1]


def test_development_pins_agree() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    group = re.search(r"^dev = \[(.*)\]$", pyproject, re.MULTILINE)
    assert group
    pinned = sorted(re.findall(r'"([^"]+)"', group[1]))
    required = (ROOT / "requirements-dev.txt").read_text().splitlines()
    assert pinned == sorted(line for line in required if not line.startswith("#"))


def test_all_is_what_it_says() -> None:
    for name in cloud_sandbox.__all__:
        assert hasattr(cloud_sandbox, name)


def test_the_synchronous_flavour_is_fresh() -> None:
    script = ROOT / "scripts" / "generate_sync.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode()


def test_both_flavours_have_the_same_face() -> None:
    for name in cloud_sandbox.__all__:
        if not name.startswith("Async"):
            continue
        sync = getattr(cloud_sandbox, name.removeprefix("Async"))
        for member in vars(getattr(cloud_sandbox, name)):
            if not member.startswith("_"):
                assert hasattr(sync, {"aclose": "close"}.get(member, member)), (name, member)


def test_the_licence_is_the_repository_s() -> None:
    assert (ROOT / "LICENSE").read_text() == (ROOT.parents[1] / "LICENSE").read_text()
