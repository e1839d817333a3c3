"""Grade many submissions at once, each in a Sandbox of its own."""

import asyncio

from cloud_sandbox import AsyncClient, AsyncSandbox

SUBMISSIONS = {
    "ann": "def double(n): return n * 2",
    "bob": "def double(n): return n ** 2",
    "eve": "def double(n):\n    while True: pass",
}
CHECK = "assert double(5) == 10, double(5)"


async def grade(client: AsyncClient, name: str, code: str) -> str:
    """Return the verdict for one submission."""
    async with await AsyncSandbox.create(client=client, network="none") as sandbox:
        execution = await sandbox.run_code(f"{code}\n{CHECK}", timeout_seconds=2)
        return f"{name}: {'passed' if execution.ok else execution.status}"


async def main() -> None:
    """Grade all of them over one connection."""
    async with AsyncClient(user_id="examples") as client:
        grading = (grade(client, name, code) for name, code in SUBMISSIONS.items())
        print("\n".join(await asyncio.gather(*grading)))


asyncio.run(main())
