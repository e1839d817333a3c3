"""The code interpreter by E2B's unmodified Python SDK, sync and async."""

import asyncio

from e2b import NotFoundException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox


def state(sb):
    sb.run_code("x = 1")
    execution = sb.run_code("x+=1; x")
    assert execution.text == "2", execution
    assert execution.execution_count == 2, execution
    assert execution.results[0].is_main_result


def output(sb):
    seen = []
    execution = sb.run_code(
        "import sys\nprint('one')\nprint('two', file=sys.stderr)\n!echo three",
        on_stdout=lambda m: seen.append(("out", m.line)),
        on_stderr=lambda m: seen.append(("err", m.line)),
    )
    assert "".join(execution.logs.stdout) == "one\nthree\n", execution
    assert execution.logs.stderr == ["two\n"], execution
    assert ("out", "one\n") in seen and ("err", "two\n") in seen, seen


def indented(sb):
    execution = sb.run_code("""
        total = 0
        for i in range(3):
            total += i
        total
        """)
    assert execution.text == "3", execution


def errors(sb):
    seen = []
    execution = sb.run_code("def f():\n    return 1 / 0\nf()", on_error=seen.append)
    assert execution.error.name == "ZeroDivisionError" and execution.error.value == "division by zero"
    assert "return 1 / 0" in execution.error.traceback and len(seen) == 1
    assert sb.run_code("1 +").error.name == "SyntaxError"
    assert sb.run_code("input()").error.name == "StdinNotImplementedError"


def results(sb):
    seen = []
    execution = sb.run_code(
        "class A:\n    def _repr_html_(self): return '<b>'\n    def _repr_json_(self): return {'a': 1}\n    def _repr_png_(self): return b'png'\n"
        "display(A())\ndisplay('text')\nA()",
        on_result=seen.append,
    )
    assert len(execution.results) == len(seen) == 3, execution
    first = execution.results[0]
    assert (first.html, first.json, first.png, first.is_main_result) == ("<b>", {"a": 1}, "cG5n", False), first.raw
    assert execution.results[1].text == "text" and execution.results[2].is_main_result


def languages(sb):
    assert sb.run_code("let a = 20; a + 1", language="javascript").text == "21"
    assert sb.run_code("const b: number = await Promise.resolve(3); b", language="ts").text == "3"
    assert sb.run_code("C=5; cd /tmp", language="bash").error is None
    assert "".join(sb.run_code("echo $C $PWD", language="bash").logs.stdout) == "5 /tmp\n"


def environment(sb):
    code = "import os; os.getenv('OF_ALL', '-') + os.getenv('OF_CALL', '-')"
    assert sb.run_code(code, envs={"OF_CALL": "2"}).text == "12"
    assert sb.run_code(code).text == "1-"


def contexts(sb):
    if not hasattr(sb, "list_code_contexts"):  # before they could be listed
        context = sb.create_code_context(cwd="/tmp", language="python")
        assert sb.run_code("import os; os.getcwd()", context=context).text == "/tmp"
        return
    assert {"python", "javascript"} <= {c.language for c in sb.list_code_contexts()}
    context = sb.create_code_context(cwd="/tmp", language="python")
    assert sb.list_code_contexts()[-1].id == context.id
    assert sb.run_code("import os; y = 1; os.getcwd()", context=context).text == "/tmp"
    assert sb.run_code("'y' in globals()").text == "False"
    sb.restart_code_context(context)
    assert sb.run_code("'y' in globals()", context=context).text == "False"
    sb.remove_code_context(context)
    try:
        sb.run_code("1", context=context)
    except NotFoundException:
        return
    raise AssertionError("a removed context still runs")


def timeout(sb):
    sb.run_code("kept = 7")
    try:
        sb.run_code("import time\nwhile True: time.sleep(0.1)", timeout=2)
    except TimeoutException:
        assert sb.run_code("kept").text == "7"
        return
    raise AssertionError("there was no timeout")


def files(sb):
    sb.files.write("data.txt", "from outside")
    assert sb.run_code("open('data.txt').read()").text == "from outside"
    sb.run_code("open('back.txt', 'w').write('from inside')")
    assert sb.files.read("back.txt") == "from inside"


async def asynchronous():
    sb = await AsyncSandbox.create(timeout=3600)
    try:
        await sb.run_code("x = 1")
        assert (await sb.run_code("x+=1; x")).text == "2"
        context = await sb.create_code_context()
        both = await asyncio.gather(sb.run_code("x"), sb.run_code("6 * 7", context=context))
        assert [e.text for e in both] == ["2", "42"]
    finally:
        await sb.kill()


with Sandbox.create(timeout=3600, envs={"OF_ALL": "1"}) as sandbox:
    for case in (state, output, indented, errors, results, languages, environment, contexts, timeout, files):
        case(sandbox)
        print("ok", case.__name__, flush=True)
asyncio.run(asynchronous())
print("ok asynchronous")
