"""Pages name the versions of npm packages that tests pin: python3 -m unittest discover tests/docs.

Each package that a page installs, NAME@VERSION, is in a package.json of tests. So is each
package that a page was tried with.
"""

from __future__ import annotations

import json
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_INSTALL = re.compile(r"^(?:RUN )?npm install (.*)$", re.MULTILINE)
_TRIED = re.compile(r"^Tried with .*\(npm.*$", re.MULTILINE)
# `NAME` VERSION, and VERSION (npm `NAME`).
_NAMED = re.compile(r"`(@?[\w./-]+)` (\d[\w.-]*\d)|(\d[\w.-]*\d) \(npm `(@?[\w./-]+)`")
_PIN = re.compile(r"(@?[\w./-]+)@(\d[\w.-]*)")


class Versions(unittest.TestCase):
    def setUp(self) -> None:
        self.pinned = {
            pin
            for file in [
                ROOT / "tests/mcp/agents/package.json",
                *ROOT.glob("tests/ecosystem/node/*/package.json"),
            ]
            for pin in json.loads(file.read_text(encoding="utf-8"))["dependencies"].items()
        }

    def test_pages_install_what_tests_pin(self) -> None:
        seen = 0
        for page in sorted((ROOT / "docs/agents").glob("*.md")):
            for line in _INSTALL.findall(page.read_text(encoding="utf-8")):
                for pin in _PIN.findall(line):
                    seen += 1
                    with self.subTest(page=page.name, package=pin):
                        self.assertIn(pin, self.pinned)
        self.assertGreater(seen, 0)

    def test_pages_were_tried_with_what_tests_pin(self) -> None:
        seen = 0
        for page in sorted((ROOT / "docs/agents").glob("*.md")):
            for line in _TRIED.findall(page.read_text(encoding="utf-8")):
                for name, version, tried, package in _NAMED.findall(line):
                    seen += 1
                    with self.subTest(page=page.name, line=line):
                        self.assertIn((name or package, version or tried), self.pinned)
        self.assertGreater(seen, 7)


if __name__ == "__main__":
    unittest.main()
