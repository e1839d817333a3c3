"""Uses the tools of Cloud Sandbox by the official Python client, as an agent does.

client.py stdio PROGRAM ARGUMENT...    client.py http URL TOKEN
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

way, *where = sys.argv[1:]


async def connected(work: Callable[[Client], Awaitable[None]]) -> None:
    if way == "stdio":
        async with Client(StdioServerParameters(command=where[0], args=where[1:], env=dict(os.environ))) as client:
            await work(client)
        return
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {where[1]}"}, timeout=60) as http:
        async with Client(streamable_http_client(where[0], http_client=http)) as client:
            await work(client)


def text(result) -> str:
    return "".join(c.text for c in result.content if c.type == "text")


async def all_tools(client: Client) -> None:
    tools = {t.name: t for t in (await client.list_tools()).tools}
    for name in ("run_code", "run_command", "read_file", "edit_file", "grep", "rollback"):
        assert name in tools, name
    assert tools["grep"].annotations.read_only_hint is True
    assert tools["kill_sandbox"].annotations.destructive_hint is True

    assert text(await client.call_tool("run_code", {"code": "x = 41\nx + 1"})) == "42"
    told = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message)

    ran = await client.call_tool(
        "run_command", {"command": "echo one; sleep 5; echo two; exit 3"}, progress_callback=progress
    )
    assert text(ran) == "one\ntwo\n[exit code 3]" and ran.is_error, ran
    assert any(m.endswith(": one") for m in told), told

    await client.call_tool("write_file", {"path": "bug.py", "content": "print(6 * 8)\n"})
    await client.call_tool("edit_file", {"path": "bug.py", "old_string": "6 * 8", "new_string": "6 * 7"})
    assert text(await client.call_tool("read_file", {"path": "bug.py"})) == "     1\tprint(6 * 7)"
    assert text(await client.call_tool("run_command", {"command": "python3 bug.py"})) == "42\n"

    image = await client.call_tool("run_code", {"code": "from PIL import Image\nImage.new('RGB', (3, 3), 'red')"})
    assert image.content[0].type == "image" and image.content[0].mime_type == "image/png", image

    wrong = await client.call_tool("run_command", {"cmd": "ls"})
    assert wrong.is_error and "command (string, required)" in text(wrong), wrong

    try:
        async with asyncio.timeout(1.5):
            await client.call_tool("run_command", {"command": "sleep 4321"})
        raise AssertionError("a command of an hour has ended")
    except TimeoutError:
        pass
    for _ in range(100):
        if text(await client.call_tool("run_command", {"command": 'pgrep -f "sleep 432[1]" || echo none'})) == "none\n":
            return
    raise AssertionError("the cancelled command still runs")


async def returned(client: Client) -> None:
    assert text(await client.call_tool("run_code", {"code": "x"})) == "41"


async def main() -> None:
    await connected(all_tools)
    await connected(returned)
    print("ok")


asyncio.run(main())
