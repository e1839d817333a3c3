"""Take a project in, change it, look around, and take it out again."""

import io
import tarfile
import tempfile
from pathlib import Path

from cloud_sandbox import Sandbox


def packed(files: dict[str, str]) -> bytes:
    """Return files as a tar archive."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return archive.getvalue()


PROJECT = {"app/main.py": "def main():\n    print('works')\n\nmain()\n", "app/notes.txt": "main\n"}

with Sandbox.create(user_id="examples") as sandbox:
    files = sandbox.files
    print("unpacked:", files.write_archive("project", packed(PROJECT)).files)
    for match in files.search(r"def \w+", "project", globs=["*.py"]):
        print(f"{match.path}:{match.line}: {match.text}")
    files.copy("project/app/main.py", "project/app/run.py")
    files.chmod("project/app/run.py", 0o755)
    print(sandbox.run_command("python3 project/app/run.py").stdout, end="")

    # Names in an archive are the Sandbox's word, so the filter matters.
    with tempfile.TemporaryDirectory() as folder:
        with files.read_archive("project") as stream, tempfile.TemporaryFile() as archive:
            for piece in stream:
                archive.write(piece)
            archive.seek(0)
            with tarfile.open(fileobj=archive) as tar:
                tar.extractall(folder, filter="data")
        print("taken out:", sorted(path.name for path in Path(folder).rglob("*.*")))
