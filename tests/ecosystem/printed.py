#!/usr/bin/env python3
"""Run a program, and check that it prints what the documentation says.

Usage: printed.py EXPECTED PROGRAM [ARGUMENT...]

Each line of the file EXPECTED must be a line of the program's output, in this order;
other lines may stand between them. ``*`` stands for any text. The program's output is
passed on. The exit code is the program's, or 1 if a line is missing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def missing(expected: str, output: str) -> str | None:
    """Return the first line of the expected ones that the output lacks; None: it has all."""
    printed = iter([line.rstrip() for line in output.splitlines()])
    for line in expected.splitlines():
        pattern = ".*".join(re.escape(part) for part in line.rstrip().split("*"))
        if not any(re.fullmatch(pattern, found) for found in printed):
            return line
    return None


def main(expected: str, program: list[str]) -> int:
    """Run the program, and return the exit code."""
    run = subprocess.run(program, stdout=subprocess.PIPE, check=False)
    output = run.stdout.decode(errors="replace")
    print(output, end="", flush=True)
    line = missing(Path(expected).read_text(encoding="utf-8"), output)
    if line is not None:
        print(f"printed: the documentation has the line {line!r}, in its place", file=sys.stderr)
    return run.returncode or (1 if line is not None else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
