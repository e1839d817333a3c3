"""Examples of the pages are the files that tests run: python3 -m unittest discover tests/docs.

A block with a comment on the line before it is that file, word for word:

    <!-- file: tests/mcp/agents/tools-in-sandbox.mjs -->
"""

from __future__ import annotations

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- file: ")


class Examples(unittest.TestCase):
    def test_blocks_are_the_files_that_tests_run(self) -> None:
        seen = 0
        for page in sorted((ROOT / "docs").rglob("*.md")):
            text = page.read_text(encoding="utf-8")
            found = _FILE.findall(text)
            with self.subTest(page=str(page.relative_to(ROOT))):
                self.assertEqual(len(found), len(_MARK.findall(text)), "a mark without a block")
            for path, block in found:
                seen += 1
                with self.subTest(page=str(page.relative_to(ROOT)), file=path):
                    self.assertEqual(block, (ROOT / path).read_text(encoding="utf-8"))
        self.assertGreater(seen, 0)


if __name__ == "__main__":
    unittest.main()
