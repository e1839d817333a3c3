#!/usr/bin/env python3
"""Write the synchronous flavour from the asynchronous one.

Every module of src/cloud_sandbox/_async but _io becomes one of the same name in
_sync: without async and await, and with the other flavour's names. ruff, of this
interpreter, gives the result its form. With --check nothing is written; the exit
code is 1 when something would be.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "cloud_sandbox"
BY_HAND = ("__init__.py", "_io.py")
HEADER = "# Generated from _async by scripts/generate_sync.py: edit it there.\n"

# In this order; the patterns are regular expressions. Prose comes first.
RULES = [
    (r"\ban ``async with``", "a ``with``"),
    (r"\ban :class:`Async", "a :class:`Async"),
    (r"\ban (?=Async[A-Z])", "a "),
    (r"concurrent use by several tasks of one\s+event loop", "use by several threads"),
    (r"\s+Handlers may be\s+coroutine functions\.", ""),
    (r"\basync (?=def\b|with\b|for\b)", ""),
    (r"\bawait\s+", ""),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\ba(close|read|iter_bytes)\b", r"\1"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAsync(?=[A-Z])", ""),
]


def generated(text: str, name: str) -> str:
    """Return the synchronous module for the text of an asynchronous one."""
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    # Imports have another order now, or no use, and some loops have a short form.
    rules = "C416,F401,I,RUF022,UP028"
    fix = ("check", "--fix-only", "--unsafe-fixes", "--select", rules)
    fixed = _ruff(HEADER + text, *fix, name=name)
    return _ruff(fixed, "format", name=name)


def _ruff(text: str, *args: str, name: str) -> str:
    target = str(SOURCES / "_sync" / name)
    done = subprocess.run(  # noqa: S603 - our own tool, with arguments from above
        [sys.executable, "-m", "ruff", *args, "--quiet", "--stdin-filename", target, "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        cwd=SOURCES,
    )
    if done.returncode:
        raise SystemExit(f"ruff {args[0]} of {name}: {done.stderr or done.stdout}")
    return done.stdout


def stale() -> dict[Path, str | None]:
    """Return the files that are not as they should be: text, or None to delete."""
    wanted = {
        SOURCES / "_sync" / file.name: generated(file.read_text(encoding="utf-8"), file.name)
        for file in sorted((SOURCES / "_async").glob("*.py"))
        if file.name not in BY_HAND
    }
    there = {
        file: file.read_text(encoding="utf-8")
        for file in (SOURCES / "_sync").glob("*.py")
        if file.name not in BY_HAND
    }
    return {
        file: wanted.get(file)
        for file in sorted({*wanted, *there})
        if wanted.get(file) != there.get(file)
    }


def main(args: list[str]) -> int:
    """Write what is stale, or with --check name it."""
    found = stale()
    for file, text in found.items():
        print(f"stale: {file.relative_to(SOURCES)}" if "--check" in args else f"write {file}")
        if "--check" in args:
            continue
        if text is None:
            file.unlink()
        else:
            file.write_text(text, encoding="utf-8")
    return 1 if found and "--check" in args else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
