"""See what changes below a folder, as an editor would."""

import asyncio

from cloud_sandbox import AsyncFileWatch, AsyncSandbox


async def tell(changes: AsyncFileWatch) -> None:
    """Print changes until both files are there anew."""
    missing = {"/workspace/src/a.py", "/workspace/src/b.py"}
    async for change in changes:
        print(change.type, change.path)
        missing.discard(change.path)
        if not missing:
            return


async def main() -> None:
    """Change files while another task is told of it."""
    async with await AsyncSandbox.create(user_id="examples") as sandbox:
        await sandbox.files.write_many({"a.py": "old = 1\n", "b.py": "print(old)\n"}, "src")
        async with await sandbox.files.watch("src", recursive=True) as changes:
            replaced = await sandbox.files.replace("src", "old", "new", globs=["*.py"])
            print("replaced:", replaced.count)
            await tell(changes)


asyncio.run(main())
