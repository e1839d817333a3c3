#!/usr/bin/env python3
"""Run the snippets of the documentation against a running server.

A snippet is a ```bash, ```python or ```typescript block of README.md or docs/**/*.md with a
comment on the line before it:

    <!-- test -->
    <!-- test contains="Hello!" -->

``contains`` is a text that its output must hold, in quotes of either kind; it may
be given several times.
Bash blocks stop at the first command that fails (set -euo pipefail) and share
their variables and their folder with the later blocks of the same file. A block
whose output holds an error of the API fails, whatever its exit code.

The server's address is CLOUD_SANDBOX_URL; it replaces http://localhost:8080 in
the blocks, and its port replaces that of any other localhost:8080, as in the host of
a sandbox's port. Python blocks run with this interpreter and the SDK of this tree, so
httpx must be there; TypeScript blocks with the Node.js that NODE
names and the SDK that scripts/typescript-env.sh has compiled. Usage: run_snippets.py [FILE...]
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_URL = "http://localhost:8080"
SECONDS_PER_SNIPPET = 120
LANGUAGES = ("bash", "python", "typescript")
SDK = ROOT / "sdk/typescript"

_MARK = re.compile(r"\s*<!--\s*test(\s.*)?-->\s*")
_CONTAINS = re.compile(r"""contains=(["'])(.*?)\1""")
_FENCE = re.compile(r"(\s*)(```+)\s*(\w*)\s*")
_API_ERROR = re.compile(r'"error"\s*:\s*\{\s*"code"')


@dataclass(frozen=True)
class Snippet:
    """One block to run, and what its output must hold."""

    file: Path
    line: int
    language: str
    code: str
    contains: tuple[str, ...]

    def __str__(self) -> str:
        """Name it as editors understand."""
        return f"{self.file}:{self.line} ({self.language})"


class MarkError(Exception):
    """A mark that would test nothing, or not what it says."""


def snippets_in(file: Path, text: str) -> list[Snippet]:
    """Return the marked blocks of a document, in order."""
    found: list[Snippet] = []
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        mark = _MARK.fullmatch(lines[i])
        fence = _FENCE.fullmatch(lines[i + 1]) if mark and i + 1 < len(lines) else None
        if mark and fence is None:
            raise MarkError(f"{file}:{i + 1}: no block begins on the line after this mark")
        start = i + 1 if mark else i
        fence = fence or _FENCE.fullmatch(lines[i])
        if fence is None:
            i += 1
            continue
        end = _end_of_block(lines, start, fence[2])
        if mark:
            found.append(_snippet(file, start, fence, lines[start + 1 : end], mark[1] or ""))
        i = end + 1
    return found


def _end_of_block(lines: list[str], start: int, ticks: str) -> int:
    for i in range(start + 1, len(lines)):
        if lines[i].strip() == ticks:
            return i
    return len(lines)


def _snippet(
    file: Path, start: int, fence: re.Match[str], code: list[str], options: str
) -> Snippet:
    where = f"{file}:{start + 1}"
    if fence[3] not in LANGUAGES:
        known = ", ".join(LANGUAGES)
        raise MarkError(f"{where}: only {known} blocks can be tested, not {fence[3]!r}")
    if _CONTAINS.sub("", options).strip():
        raise MarkError(f'{where}: the mark holds something that is not contains="..."')
    indent = len(fence[1])
    return Snippet(
        file=file,
        line=start + 2,
        language=fence[3],
        code="\n".join(line[indent:] for line in code) + "\n",
        contains=tuple(text for _, text in _CONTAINS.findall(options)),
    )


@dataclass(frozen=True)
class Outcome:
    """What a snippet printed, and why it failed; None if it did not."""

    output: str
    failure: str | None


class Runner:
    """Runs the snippets of one document one after another."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._state = folder / ".state"
        self._url = url

    def run(self, snippet: Snippet) -> Outcome:
        """Run one snippet and judge it."""
        code = _addressed(snippet.code, self._url)
        if snippet.language == "bash":
            argv = self._bash(code)
        elif snippet.language == "python":
            argv = [sys.executable, "-c", code]
        else:
            argv = self._typescript(code)
        output, status = _run(argv, self._folder, self._environment())
        return Outcome(output, _failure(snippet, output, status))

    def _bash(self, code: str) -> list[str]:
        state = shlex.quote(str(self._state))
        return [
            "bash",
            "-euo",
            "pipefail",
            "-c",
            f"set -a; if [[ -e {state} ]]; then source {state}; fi\n"
            f'trap \'{{ export -p; printf "cd %q\\n" "$PWD"; }} >{state}\' EXIT\n{code}',
        ]

    def _typescript(self, code: str) -> list[str]:
        """Put the code where it finds the SDK, and have it compiled as it runs."""
        packages = self._folder / "node_modules"
        if not packages.exists():
            packages.mkdir()
            (packages / "cloud-sandbox").symlink_to(SDK)
        program = self._folder / "snippet.mts"
        program.write_text(code, encoding="utf-8")
        loader = SDK / "node_modules/tsx/dist/loader.mjs"
        node = os.environ.get("NODE", "node")
        return [node, "--import", loader.as_uri(), str(program)]

    def _environment(self) -> dict[str, str]:
        paths = [str(ROOT / "sdk/python/src"), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "CLOUD_SANDBOX_URL": self._url,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
        }


def _addressed(code: str, url: str) -> str:
    """Return code with the server's address instead of the default one."""
    code = code.replace(DEFAULT_URL, url)
    port = urllib.parse.urlsplit(url).port
    return code.replace("localhost:8080", f"localhost:{port}") if port else code


def _run(argv: list[str], folder: Path, env: dict[str, str]) -> tuple[str, int | None]:
    """Return the output and the exit status; None when it took too long."""
    with subprocess.Popen(
        argv,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS_PER_SNIPPET)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # also what it started
            output, _ = process.communicate()
            status = None
    return output.decode(errors="replace"), status


def _failure(snippet: Snippet, output: str, status: int | None) -> str | None:
    if status is None:
        return f"it took longer than {SECONDS_PER_SNIPPET} s"
    if status != 0:
        return f"it ended with exit code {status}"
    if _API_ERROR.search(output):
        return "its output holds an error of the API"
    missing = [text for text in snippet.contains if text not in output]
    return f"its output lacks {missing[0]!r}" if missing else None


def documents() -> list[Path]:
    """Return the documents whose marks count."""
    return [
        file
        for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        if file.is_file()
    ]


def run_documents(files: list[Path], url: str) -> int:
    """Run all snippets of files, tell how each went, and return how many failed."""
    failed = run = 0
    for file in files:
        name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
        with tempfile.TemporaryDirectory() as folder:
            runner = Runner(Path(folder), url)
            for snippet in snippets_in(name, file.read_text(encoding="utf-8")):
                started = time.monotonic()
                outcome = runner.run(snippet)
                run += 1
                if outcome.failure is None:
                    print(f"ok    {snippet}  {time.monotonic() - started:.1f} s")
                    continue
                failed += 1
                print(f"FAIL  {snippet}: {outcome.failure}")
                print("".join(f"      | {line}\n" for line in outcome.output.splitlines()), end="")
    if run == 0:
        print("FAIL  no snippet is marked, so nothing was tested")
        return 1
    print(f"{run - failed} of {run} snippets work")
    return failed


def main(args: list[str]) -> int:
    """Run the snippets and return the exit code."""
    url = os.environ.get("CLOUD_SANDBOX_URL", DEFAULT_URL).rstrip("/")
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10):  # noqa: S310 - the operator's URL
            pass
    except (OSError, ValueError, urllib.error.URLError) as err:
        print(f"FAIL  no server answers at {url} (set CLOUD_SANDBOX_URL): {err}")
        return 1
    try:
        return 1 if run_documents([Path(arg).resolve() for arg in args] or documents(), url) else 0
    except MarkError as err:
        print(f"FAIL  {err}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
