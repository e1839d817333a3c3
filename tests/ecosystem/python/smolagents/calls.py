"""All calls of smolagents' executor for E2B, against the server. Its own suite only mocks E2B."""

from __future__ import annotations

import datetime as dt
from typing import Any

from e2b_code_interpreter import Sandbox, SandboxQuery, SandboxState
from PIL.Image import Image
from smolagents import AgentLogger, ChatMessage, CodeAgent, LogLevel, MessageRole, Model, tool
from smolagents.default_tools import FinalAnswerTool
from smolagents.remote_executors import E2BExecutor
from smolagents.utils import AgentError

LOGGER = AgentLogger(level=LogLevel.OFF)


@tool
def double(number: int) -> int:
    """Double a number.

    Args:
        number: what to double.
    """
    return 2 * number


def fails(executor: E2BExecutor, code: str) -> str:
    """Run code that must fail, and return the error."""
    try:
        executor(code)
    except AgentError as err:
        return str(err)
    raise AssertionError(f"this succeeded: {code}")


def code(executor: E2BExecutor) -> None:
    """Run code, whose variables, imports, output and last value are kept."""
    executor("import numpy as np; a = 2")
    ran = executor("print(np.sqrt(a))\nprint('more')")
    assert ran.logs.startswith("1.41421"), ran
    assert ran.logs.endswith("more\n"), ran
    assert (ran.output, ran.is_final_answer) == (None, False), ran
    assert executor("a * 21").output == "42"
    # E2B's service takes the quotes from a string, and so does this one.
    assert executor.run_code_raise_errors("'text'").output == "text"
    assert executor("import os; print(os.environ['COLOUR'])").logs == "blue\n"


def errors(executor: E2BExecutor) -> None:
    """Fail with the name, the value and the place of an error, and go on."""
    said = fails(executor, "print('before')\n1 / 0")
    assert "before" in said, said
    assert "ZeroDivisionError\ndivision by zero" in said, said
    assert "SyntaxError" in fails(executor, "print('no end")
    assert "NameError" in fails(executor, "no_such_name")
    assert executor("a").output == "2"


def shown(executor: E2BExecutor) -> None:
    """Show pictures and other forms of a value."""
    picture = executor("from PIL import Image\nImage.new('RGB', (10, 20), (255, 0, 0))").output
    assert isinstance(picture, Image), picture
    assert (picture.size, picture.convert("RGB").getpixel((0, 0))) == ((10, 20), (255, 0, 0))
    page = "class Page:\n    def _repr_html_(self):\n        return '<b>page</b>'\nPage()"
    assert executor(page).output == "<b>page</b>"


def variables(executor: E2BExecutor) -> None:
    """Send values of many types."""
    values: dict[str, Any] = {
        "numbers": [1, 2.5, None, True],
        "pair": ("a", {"b": {1, 2}}),
        "raw": bytes(range(256)),
        "when": dt.date(2026, 1, 2),
        "quoted": "'\"\\\n\u00e9",
    }
    executor.send_variables(values)
    for name, value in values.items():
        assert executor(f"import datetime; print({name} == {value!r})").logs == "True\n", name
    executor.send_variables({})


def tools(executor: E2BExecutor) -> None:
    """Send tools, and end with answers of many types."""
    executor.send_tools({"double": double, "final_answer": FinalAnswerTool()})
    assert executor("double(number=21)").output == "42"
    for answer in (42, "text", None, [1, ("a", 2.5)], {"b": {"c": b"\xff"}}, {1, 2}):
        ran = executor(f"print('so')\nfinal_answer({answer!r})")
        assert (ran.output, ran.is_final_answer, ran.logs) == (answer, True, "so\n"), ran
    assert "SerializationError" in fails(executor, "final_answer(object())")


def packages() -> None:
    """Install packages that the template has, for which pip needs no network."""
    executor = E2BExecutor(["numpy"], LOGGER, timeout=300)
    try:
        assert executor.installed_packages == ["numpy"]
        assert executor.install_packages([]) == []
    finally:
        executor.cleanup()


class Scripted(Model):
    """A model that says texts in order."""

    def __init__(self, *texts: str) -> None:
        super().__init__(model_id="scripted")
        self.texts = list(texts)
        self.told: list[str] = []

    def generate(self, messages: list[ChatMessage], **_: object) -> ChatMessage:
        """Return the next text, and note what it answers."""
        self.told.append(str(messages[-1].content))
        return ChatMessage(role=MessageRole.ASSISTANT, content=self.texts.pop(0))


def agent() -> None:
    """Run an agent with a tool and a variable, which mends its mistake."""
    model = Scripted(
        "<code>\nprint('got', double(n))\n1 / 0\n</code>",
        "<code>\nfinal_answer(double(number=n))\n</code>",
    )
    with CodeAgent(
        tools=[double],
        model=model,
        executor_type="e2b",
        executor_kwargs={"template": "code-interpreter-v1", "timeout": 300},
        verbosity_level=LogLevel.OFF,
    ) as worker:
        assert worker.run("Double n.", additional_args={"n": 21}) == 42
    assert "got 42" in model.told[1], model.told
    assert "ZeroDivisionError" in model.told[1], model.told


def running() -> set[str]:
    """Return the IDs of the sandboxes that run."""
    found = Sandbox.list(query=SandboxQuery(state=[SandboxState.RUNNING]))
    ids: set[str] = set()
    while found.has_next:
        ids.update(info.sandbox_id for info in found.next_items())
    return ids


executor = E2BExecutor([], LOGGER, timeout=300, envs={"COLOUR": "blue"}, metadata={"for": "calls"})
sandbox = executor.sandbox.sandbox_id
try:
    assert sandbox in running()
    code(executor)
    errors(executor)
    shown(executor)
    variables(executor)
    tools(executor)
finally:
    executor.cleanup()
executor.cleanup()
packages()
agent()
assert not running(), running()
