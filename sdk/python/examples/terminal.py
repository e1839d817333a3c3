"""Type into a terminal, as a web IDE does, while a second viewer looks on."""

import asyncio

from cloud_sandbox import AsyncSandbox, AsyncTerminal


async def screen(terminal: AsyncTerminal) -> str:
    """Return all that a viewer sees until the process has ended."""
    return b"".join([data async for data in terminal]).decode()


async def main() -> None:
    """Open a shell, look on from a second connection, type, and leave."""
    async with await AsyncSandbox.create(user_id="examples") as sandbox:
        async with await sandbox.processes.open_terminal("bash --norc", cols=100) as terminal:
            shell = await sandbox.processes.get(terminal.process_id)
            async with await shell.attach(0) as viewer:
                looking = asyncio.create_task(screen(viewer))
                await terminal.resize(120, 40)
                await terminal.write("stty size; echo $((6 * 7)); exit 7\n")
                typed = await screen(terminal)
                print("the same for both:", await looking == typed)
        print(typed)
        assert terminal.info is not None
        print("exit code:", terminal.info.exit_code)


asyncio.run(main())
