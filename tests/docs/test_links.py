"""Links of the documentation lead somewhere: python3 -m unittest discover tests/docs."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "sdk").glob("*/README.md")),
    ROOT / "tests/ecosystem/README.md",
    ROOT / "tests/sdk/README.md",
]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Links(unittest.TestCase):
    def test_links_lead_somewhere(self) -> None:
        for document in DOCUMENTS:
            for link in _LINK.findall(_CODE.sub("", document.read_text(encoding="utf-8"))):
                if "://" in link:
                    continue
                path, _, anchor = link.partition("#")
                target = (document.parent / path) if path else document
                with self.subTest(document=str(document.relative_to(ROOT)), link=link):
                    self.assertTrue(target.exists(), "there is no such file")
                    if anchor and target.suffix == ".md":
                        self.assertIn(anchor, anchors(target.read_text(encoding="utf-8")))

    def test_every_decision_is_in_the_index(self) -> None:
        folder = ROOT / "docs/adr"
        index = (folder / "README.md").read_text(encoding="utf-8")
        for page in sorted(folder.glob("[0-9]*.md")):
            with self.subTest(page.name):
                self.assertIn(f"]({page.name})", index)

    def test_every_page_of_the_guide_is_in_its_index(self) -> None:
        folder = ROOT / "docs/user-guide"
        index = (folder / "README.md").read_text(encoding="utf-8")
        for page in sorted(folder.glob("*.md")):
            with self.subTest(page.name):
                self.assertTrue(page.name == "README.md" or f"]({page.name})" in index)


if __name__ == "__main__":
    unittest.main()
