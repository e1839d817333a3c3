"""The scripted model and the check of outputs: python3 -m unittest discover tests/ecosystem."""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any

import model
import printed

CALL = {"asked": ["Who"], "call": "run", "arguments": {"command": "id -un"}}
SAY = {"told": ["user"], "say": "It is user."}
TOOLS = [{"type": "function", "function": {"name": "run"}}]


def chat(*messages: tuple[str, str]) -> dict[str, Any]:
    """Return a request of Chat Completions, where each result is that of the first call."""
    return {
        "tools": TOOLS,
        "messages": [
            {
                "role": role,
                "content": content,
                **({"tool_call_id": "call_1"} if role == "tool" else {}),
            }
            for role, content in messages
        ],
    }


def responses(*items: dict[str, Any]) -> dict[str, Any]:
    """Return a request of Responses."""
    return {"tools": [{"type": "function", "name": "run"}], "input": list(items)}


class Scripted(unittest.TestCase):
    def complaints(self, path: str, *requests: dict[str, Any]) -> list[str]:
        script = model.Model([CALL, SAY])
        for request in requests:
            script.answer(path, request)
        return script.left()

    def test_a_result_counts(self) -> None:
        asked = [("user", "Who are you?")]
        self.assertEqual(
            self.complaints(
                "/v1/chat/completions",
                chat(*asked),
                chat(*asked, ("assistant", ""), ("tool", "user")),
            ),
            [],
        )
        question = {"role": "user", "content": [{"type": "input_text", "text": "Who are you?"}]}
        result = {"type": "function_call_output", "call_id": "call_1", "output": "user"}
        self.assertEqual(
            self.complaints("/v1/responses", responses(question), responses(question, result)), []
        )

    def test_nothing_else_counts(self) -> None:
        asked = [("system", "You are user."), ("user", "Who? The user?")]
        for name, messages in {
            "the prompt": [("assistant", "user"), ("tool", "no such command")],
            "a later message": [("assistant", ""), ("tool", ""), ("user", "user")],
            "no result": [],
        }.items():
            with self.subTest(name):
                told = self.complaints(
                    "/v1/chat/completions", chat(*asked), chat(*asked, *messages)
                )
                self.assertEqual(len(told), 1, told)
                self.assertIn("what the model was told lacks 'user'", told[0])
        other = {"type": "function_call_output", "call_id": "call_0", "output": "user"}
        question = {"role": "user", "content": "Who? The user?"}
        told = self.complaints("/v1/responses", responses(question), responses(question, other))
        self.assertEqual(len(told), 1, told)

    def test_the_question_counts(self) -> None:
        told = self.complaints(
            "/v1/chat/completions",
            chat(("system", "Who"), ("user", "What?")),
            chat(("user", "What?"), ("assistant", ""), ("tool", "user")),
        )
        self.assertEqual(len(told), 1, told)
        self.assertIn("the user's message lacks 'Who'", told[0])

    def test_what_is_said_is_answered(self) -> None:
        script = model.Model([{"say": "print(6 * 7)"}, {"told": ["42"], "say": "done"}])
        script.answer("/v1/chat/completions", chat(("user", "42?")))
        script.answer(
            "/v1/chat/completions",
            chat(("user", "42?"), ("assistant", "print(6 * 7)"), ("user", "Observation: 42")),
        )
        self.assertEqual(script.left(), [])

    def test_scripts_that_a_broken_tool_passes_are_refused(self) -> None:
        for turns in (
            [],
            [SAY],
            [CALL, {"say": "It is user."}],
            [CALL, {"told": ["id -un"], "say": "It is user."}],
            [{"say": "print(42)"}, {"told": ["42"], "say": "42"}],
        ):
            with self.subTest(turns=turns), self.assertRaises(ValueError):
                model.check(turns)

    def test_all_scripts_are_sound(self) -> None:
        found = sorted(Path(__file__).parent.glob("*/*/model.json"))
        self.assertGreater(len(found), 5)
        for script in found:
            with self.subTest(script=script):
                model.check(json.loads(script.read_text(encoding="utf-8")))


class Printed(unittest.TestCase):
    def test_lines_in_their_order(self) -> None:
        output = "begin\n42\nid i0abc running  \nend\n"
        for expected, line in {
            "42\n": None,
            "begin\nend\n": None,
            "id i* running\n": None,
            "": None,
            "end\nbegin\n": "begin",
            "4\n": "4",
            "id i*\n42\n": "42",
        }.items():
            with self.subTest(expected=expected):
                self.assertEqual(printed.missing(expected, output), line)


if __name__ == "__main__":
    unittest.main()
