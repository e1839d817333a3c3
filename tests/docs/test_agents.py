"""The pages of agents show what tests run: python3 -m unittest discover tests/docs.

A block after the comment

    <!-- file tests/ecosystem/python/agno/example.py -->

is that file, word for word. What a page says to install, PACKAGE==VERSION, is what
requirements.txt pins.
"""

from __future__ import annotations

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/agents"
ECOSYSTEM = ROOT / "tests/ecosystem"

_SHOWN = re.compile(r"^<!-- file (\S+) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[[\w,-]+\])?==([\w.]+)")


def pages() -> list[tuple[str, str]]:
    """Return the name and the text of each page."""
    return [(page.name, page.read_text(encoding="utf-8")) for page in sorted(PAGES.glob("*.md"))]


def pins(text: str) -> set[tuple[str, str]]:
    """Return the packages of a text with their versions, as pip compares names."""
    return {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in _PIN.findall(text)}


class Agents(unittest.TestCase):
    def test_blocks_are_the_files_that_they_name(self) -> None:
        for name, text in pages():
            shown = _SHOWN.findall(text)
            self.assertEqual(text.count("<!-- file "), len(shown), f"{name}: no block follows")
            for path, block in shown:
                with self.subTest(page=name, file=path):
                    self.assertEqual(block, (ROOT / path).read_text(encoding="utf-8"))

    def test_every_example_is_shown(self) -> None:
        shown = {path for _, text in pages() for path, _ in _SHOWN.findall(text)}
        for example in sorted(ECOSYSTEM.glob("*/*/example.*")):
            with self.subTest(example=example):
                self.assertIn(str(example.relative_to(ROOT)), shown)

    def test_versions_are_those_that_tests_pin(self) -> None:
        pinned = {
            pin
            for file in ECOSYSTEM.glob("python/*/requirements.txt")
            for pin in pins(file.read_text(encoding="utf-8"))
        }
        for name, text in pages():
            for pin in sorted(pins(text)):
                with self.subTest(page=name, pin=pin):
                    self.assertIn(pin, pinned)

    def test_every_page_is_in_the_index(self) -> None:
        index = (PAGES / "README.md").read_text(encoding="utf-8")
        for name, _ in pages():
            with self.subTest(page=name):
                self.assertTrue(name == "README.md" or f"]({name})" in index)

    def test_the_index_has_the_versions_that_tests_pin(self) -> None:
        index = (PAGES / "README.md").read_text(encoding="utf-8")
        for file in sorted(ECOSYSTEM.glob("python/*/requirements.txt")):
            package = file.parent.name
            version = dict(pins(file.read_text(encoding="utf-8")))[package]
            with self.subTest(package=package):
                row = rf"(?m)^\| .*\b{re.escape(package)} {re.escape(version)}\b"
                self.assertRegex(index, row)


if __name__ == "__main__":
    unittest.main()
