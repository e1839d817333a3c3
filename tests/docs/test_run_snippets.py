"""Tests of the snippet runner: python3 -m unittest discover tests/docs."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import run_snippets
from run_snippets import MarkError, Runner, Snippet, snippets_in

FILE = Path("doc.md")


class Finding(unittest.TestCase):
    def test_marked_blocks_only(self) -> None:
        text = (
            "```bash\nnot marked\n```\n"
            '<!-- test contains="a b" contains=\'"c"\' -->\n```bash\necho a b\n```\n'
            "1. In a list:\n\n   <!-- test -->\n   ```python\n   if 1:\n       pass\n   ```\n"
            "````markdown\n<!-- test -->\n```bash\nan example of a mark\n```\n````\n"
        )
        self.assertEqual(
            snippets_in(FILE, text),
            [
                Snippet(FILE, 6, "bash", "echo a b\n", ("a b", '"c"')),
                Snippet(FILE, 12, "python", "if 1:\n    pass\n", ()),
            ],
        )

    def test_marks_that_would_test_nothing(self) -> None:
        for text in (
            "<!-- test -->\n\n```bash\ntrue\n```\n",
            "<!-- test -->",
            "<!-- test -->\n```text\ntrue\n```\n",
            "<!-- test contain='x' -->\n```bash\ntrue\n```\n",
        ):
            with self.subTest(text), self.assertRaises(MarkError):
                snippets_in(FILE, text)


class Running(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.runner = Runner(Path(folder.name), "http://localhost:1234")

    def failure(self, code: str, language: str = "bash", contains: tuple[str, ...] = ()) -> str:
        return self.runner.run(Snippet(FILE, 1, language, code, contains)).failure or ""

    def test_blocks_share_variables_and_folder(self) -> None:
        self.assertEqual(self.failure("TOKEN='a  b'\nmkdir d\ncd d"), "")
        code = 'echo "$TOKEN" "$(basename "$PWD")"'
        self.assertEqual(self.failure(code, contains=("a  b d",)), "")

    def test_the_address_is_replaced(self) -> None:
        code = "echo http://localhost:8080/x $CLOUD_SANDBOX_URL"
        contains = ("http://localhost:1234/x http://localhost:1234",)
        self.assertEqual(self.failure(code, contains=contains), "")
        code = "echo localhost:8080/x http://8000-id.localhost:8080/page"
        contains = ("localhost:1234/x http://8000-id.localhost:1234/page",)
        self.assertEqual(self.failure(code, contains=contains), "")

    def test_what_fails(self) -> None:
        for code, language, why in (
            ("false\ntrue", "bash", "exit code 1"),
            ("false | true", "bash", "exit code 1"),
            ("echo $NOT_SET", "bash", "exit code 1"),
            ("1/0", "python", "exit code 1"),
            ("const n: number = 1;\nthrow new Error(`${n}`);", "typescript", "exit code 1"),
            ('echo \'{"error": {"code":"x"}}\'', "bash", "error of the API"),
        ):
            with self.subTest(code):
                self.assertIn(why, self.failure(code, language))
        self.assertIn("lacks 'b'", self.failure("echo a", contains=("a", "b")))

    def test_typescript_finds_the_sdk(self) -> None:
        code = (
            'import { VERSION } from "cloud-sandbox";\n'
            "await using held = { async [Symbol.asyncDispose]() { console.log('left'); } };\n"
            "console.log(VERSION satisfies string, process.env.CLOUD_SANDBOX_URL, typeof held);\n"
        )
        contains = ("http://localhost:1234 object", "left")
        self.assertEqual(self.failure(code, "typescript", contains), "")

    def test_a_snippet_that_hangs(self) -> None:
        self.addCleanup(setattr, run_snippets, "SECONDS_PER_SNIPPET", 120)
        run_snippets.SECONDS_PER_SNIPPET = 1
        self.assertIn("longer than 1 s", self.failure("sleep 60 & sleep 60"))


if __name__ == "__main__":
    unittest.main()
