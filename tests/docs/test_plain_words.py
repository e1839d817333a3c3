"""The documentation is in plain words: python3 -m unittest discover tests/docs."""

from __future__ import annotations

import unittest

from plain_words import MAX_WORDS, ROOT, documents, findings_in, judge, markdown, openapi, sentences


class Documents(unittest.TestCase):
    def test_no_sentence_has_to_be_read_twice(self) -> None:
        for file in documents():
            name = str(file.relative_to(ROOT))
            with self.subTest(name):
                found = findings_in(name, file.read_text(encoding="utf-8"))
                if found:
                    self.fail("\n" + "\n".join(map(str, found)))

    def test_the_pages_are_read(self) -> None:
        names = {str(file.relative_to(ROOT)) for file in documents()}
        self.assertLessEqual(
            {"README.md", "docs/user-guide/files.md", "docs/ARCHITECTURE.md", "api/openapi.yaml"},
            names,
        )
        self.assertNotIn("CHANGELOG.md", names)
        self.assertFalse([name for name in names if name.startswith("docs/adr/")])
        text = (ROOT / "api/openapi.yaml").read_text(encoding="utf-8")
        self.assertGreater(len(list(openapi(text))), 800)


class Judging(unittest.TestCase):
    def test_marks(self) -> None:
        for sentence in (
            "What names a host holds for it.",
            "The size of what is in it.",
            "It keeps what it wrote.",
            "Who asks for it needs a token.",
            "Keys are for who made them.",
            "Whoever has it can use it.",
            "The state is that of the original.",
            "Those that wait are refused.",
            "The one that runs is kept.",
            "Nobody can read it.",
            "A path that is not there is refused.",
            "It tells of every change.",
            "A server was told to stop.",
            "The program goes on.",
            "Sandboxes run on, and so do their programs.",
            "Of a build that is ready.",
            "There when it has ended.",
            "Requests under way end.",
            "It lets go of its memory.",
            "Ask for it anew.",
            "They look after users.",
            "Where no rule matches, it is refused.",
        ):
            with self.subTest(sentence):
                self.assertTrue(list(judge(sentence)))

    def test_plain_sentences(self) -> None:
        for sentence in (
            "The most specific host wins.",
            "The log says what failed, and what to do.",
            "What is a template?",
            "A session that ended is kept for seven days.",
            "Run `what of nobody` as **root**.",
            "See [the page](what-is-not-there.md).",
            "There is one exception.",
            "The sandboxes run on one node.",
            "Of ten requests, one resumes it.",
            "Users who are suspended answer 403.",
        ):
            with self.subTest(sentence):
                self.assertEqual(list(judge(sentence)), [])

    def test_length(self) -> None:
        words = ["word"] * MAX_WORDS
        self.assertEqual(list(judge(" ".join(words) + ".")), [])
        self.assertEqual(len(list(judge(" ".join([*words, "more"]) + "."))), 1)
        self.assertEqual(list(judge("Code is one word: `" + " ".join(words) + "`.")), [])

    def test_a_finding_says_where_and_what_to_do(self) -> None:
        text = "# Title\n\nA sentence.\nNobody\nreads it. Another.\n"
        (found,) = findings_in("page.md", text)
        self.assertEqual(
            str(found),
            "page.md:3: 'Nobody': say which person or program: user, client, tenant\n"
            "    Nobody reads it.",
        )


class Reading(unittest.TestCase):
    def test_markdown(self) -> None:
        text = (
            "# Head\n\nOne\ntwo.\n- item\n  more\n1. other\n\n| A | `b|c` |\n|---|---|\n| d | |\n"
            "<!-- test -->\n```bash\nnot this\n```\n\n"
            "<!-- bench: written by x -->\n\n| nobody |\n\n<!-- bench ends -->\nend\n"
        )
        self.assertEqual(
            [(piece.line, piece.text) for piece in markdown(text)],
            [
                (1, "Head"),
                (3, "One two."),
                (5, "item more"),
                (7, "other"),
                (9, "A"),
                (9, "`b/c`"),
                (11, "d"),
                (22, "end"),
            ],
        )

    def test_openapi(self) -> None:
        text = (
            "info:\n"
            "  description: |\n    First\n    line.\n\n    Second.\n  title: nobody\n"
            "a: {type: string, description: In a flow.}\n"
            "b: {description: 'It''s, quoted.', type: string}\n"
            'c:\n  summary: To the end, with {braces}.\n  - description: "In a list"\n'
            "d: {description: One, x: {description: Two}}\n"
        )
        self.assertEqual(
            [(piece.line, piece.text) for piece in openapi(text)],
            [
                (3, "First line."),
                (6, "Second."),
                (8, "In a flow."),
                (9, "It's, quoted."),
                (11, "To the end, with {braces}."),
                (12, "In a list"),
                (13, "One"),
                (13, "Two"),
            ],
        )

    def test_sentences(self) -> None:
        self.assertEqual(
            list(
                sentences('One. **Two.** Three, e.g. This (four). "Five?" `six` is. v1.2 is 3.5 s.')
            ),
            ["One.", "**Two.**", "Three, e.g. This (four).", '"Five?"', "`six` is. v1.2 is 3.5 s."],
        )


if __name__ == "__main__":
    unittest.main()
