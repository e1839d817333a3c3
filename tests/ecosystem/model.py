#!/usr/bin/env python3
"""Run a program with a script in the place of a model.

Usage: model.py SCRIPT PROGRAM [ARGUMENT...]

SCRIPT is a JSON file with the answers of the model, in order, one for each request:

    [
      {"asked": ["Which user"], "call": "run_command", "arguments": {"command": "id -un"}},
      {"told": ["user"], "say": "The user is called user."}
    ]

``call`` asks for a tool, which the request must offer, with ``arguments``, or with the
text ``input`` for a custom tool of Responses; ``say`` is text. ``asked`` are texts that
the user's message must hold, in the first request. ``told`` are texts that the result of
the call before must hold, or after a ``say``, the messages that answer it; nothing else
of the request counts. Each call must have a ``told`` after it, with no text that the
call itself has: a tool that only repeats its input does not pass. PROGRAM finds the model by
OPENAI_BASE_URL and OPENAI_API_KEY; Chat Completions and Responses are served, without
streams.

The exit code is the program's, or 1 if a request was not as the script wants it, or if
an answer of the script was not asked for.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def texts_in(value: Any) -> list[str]:
    """Return all strings inside a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for item in value for text in texts_in(item)]
    return []


def messages_in(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a request, or what Responses has in their place."""
    messages = request.get("messages", request.get("input"))
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return messages or []


RESULTS = {"function_call_output", "custom_tool_call_output"}


def results_in(request: dict[str, Any], call: str) -> list[str]:
    """Return the texts of the results of a call, by its ID."""
    return [
        text
        for message in messages_in(request)
        if message.get("role") == "tool" or message.get("type") in RESULTS
        if call == message.get("tool_call_id", message.get("call_id"))
        for text in texts_in(message.get("content", message.get("output")))
    ]


def answers_in(request: dict[str, Any]) -> list[str]:
    """Return the texts of the messages after the model's last one."""
    messages = messages_in(request)
    said = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    after = messages[said[-1] + 1 :] if said else []
    return [text for message in after for text in texts_in(message.get("content"))]


def questions_in(request: dict[str, Any]) -> list[str]:
    """Return the texts of the user's messages."""
    return [
        text
        for message in messages_in(request)
        if message.get("role") == "user"
        for text in texts_in(message.get("content"))
    ]


def check(turns: list[dict[str, Any]]) -> None:
    """Raise ValueError for a script that a broken tool could pass."""
    if not turns or "told" in turns[0]:
        raise ValueError("answer 1 has no call before it whose result it could be told")
    for number, (before, turn) in enumerate(itertools.pairwise(turns), 2):
        told = turn.get("told", [])
        if not told:
            raise ValueError(f"answer {number} does not check the result of the call before")
        sent = texts_in([before.get("arguments"), before.get("input"), before.get("say")])
        for text in told:
            if any(text in held for held in sent):
                raise ValueError(f"answer {number}: the model itself sent {text!r} before")


def tools_in(request: dict[str, Any]) -> list[str]:
    """Return the names of the tools that a request offers."""
    return [
        tool.get("function", tool).get("name", tool.get("type", ""))
        for tool in request.get("tools") or []
    ]


def completion(request: dict[str, Any], turn: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the answer of Chat Completions."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.get("say")}
    if "call" in turn:
        function = {"name": turn["call"], "arguments": json.dumps(turn["arguments"])}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model", ""),
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if "call" in turn else "stop",
            }
        ],
        "usage": USAGE,
    }


def response(request: dict[str, Any], turn: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the answer of Responses."""
    item: dict[str, Any]
    if "call" in turn:
        custom = "input" in turn
        item = {
            "type": "custom_tool_call" if custom else "function_call",
            "id": f"fc_{number}",
            "call_id": f"call_{number}",
            "name": turn["call"],
            "status": "completed",
        }
        if custom:
            item["input"] = turn["input"]
        else:
            item["arguments"] = json.dumps(turn["arguments"])
    else:
        item = {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": turn["say"], "annotations": []}],
        }
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": request.get("model", ""),
        "output": [item],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2,
        },
    }


APIS = {"/v1/chat/completions": completion, "/v1/responses": response}


class Model:
    """Answers by a script, and notes how requests differ from it."""

    def __init__(self, turns: list[dict[str, Any]]) -> None:
        self._turns = turns
        self._served = 0
        self._lock = threading.Lock()
        self.complaints: list[str] = []

    def answer(self, path: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the next answer; None if there is none for this request."""
        with self._lock:
            if path not in APIS:
                return self._complain(f"{path} is not served")
            if request.get("stream"):
                return self._complain(f"{path} was asked for a stream")
            if self._served == len(self._turns):
                return self._complain("a request came after the last answer of the script")
            turn = self._turns[self._served]
            self._served += 1
            if "call" in self._turns[self._served - 2]:
                told = results_in(request, f"call_{self._served - 1}")
            else:
                told = answers_in(request)
            self._holds("the user's message", questions_in(request), turn.get("asked", []))
            self._holds("what the model was told", told, turn.get("told", []))
            offered = tools_in(request)
            if "call" in turn and turn["call"] not in offered:
                self._complain(f"request {self._served} offers {offered}, not {turn['call']}")
            return APIS[path](request, turn, self._served)

    def left(self) -> list[str]:
        """Return what was wrong, also that answers were not asked for."""
        if self._served < len(self._turns):
            self._complain(f"{self._served} of {len(self._turns)} answers were asked for")
        return self.complaints

    def _holds(self, what: str, texts: list[str], wanted: list[str]) -> None:
        for text in wanted:
            if not any(text in held for held in texts):
                seen = [held[:500] for held in texts][:20]
                self._complain(f"request {self._served}: {what} lacks {text!r}: {seen}")

    def _complain(self, text: str) -> None:
        self.complaints.append(text)


def handler(model: Model) -> type[BaseHTTPRequestHandler]:
    """Return the HTTP side of a model."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = model.answer(self.path, json.loads(body))
            error = {"error": {"message": "see the script of the model", "type": "invalid"}}
            reply = json.dumps(error if answer is None else answer).encode()
            self.send_response(400 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *args: object) -> None:
            """Log nothing: the script says what went wrong."""

    return Handler


def main(script: str, program: list[str]) -> int:
    """Run the program, and return the exit code."""
    turns = json.loads(Path(script).read_text(encoding="utf-8"))
    check(turns)
    model = Model(turns)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(model))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/v1"
    environment = {**os.environ, "OPENAI_BASE_URL": address, "OPENAI_API_KEY": "sk-scripted"}
    status = subprocess.run(program, env=environment, check=False).returncode
    server.shutdown()
    for complaint in model.left():
        print(f"model: {complaint}", file=sys.stderr)
    return status or (1 if model.complaints else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
