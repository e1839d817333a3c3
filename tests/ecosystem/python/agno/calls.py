"""The calls of agno's E2B toolkit, against the server."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from agno.tools.e2b import E2BTools

PLOT = """
import base64
from IPython.display import Image, display
display(Image(data=base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYPj/HwADAgH/2VS0VwAAAABJRU5ErkJggg==")))
"""

tools = E2BTools(timeout=600)


def code() -> None:
    """Run code, and take the picture that it shows."""
    assert "42" in tools.run_python_code("x = 6\nprint(x * 7)")
    assert "ZeroDivisionError" in tools.run_python_code("1 / 0")
    assert "Result 1" in tools.run_python_code(PLOT)
    assert tools.download_png_result(None, 0, "picture.png").images
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")


def files() -> None:
    """Carry files in and out, and list them."""
    Path("here.txt").write_text("from here\n")
    assert tools.upload_file("here.txt", "/home/user/there.txt") == "/home/user/there.txt"
    assert tools.read_file_content("/home/user/there.txt") == "from here\n"
    assert "new.txt" in tools.write_file_content("/home/user/new.txt", "new")
    assert "there.txt" in tools.list_files("/home/user")


def commands() -> None:
    """Run commands, to their end and in the background."""
    assert "out" in tools.run_command("echo out; echo err >&2")
    assert "error" in tools.run_command("exit 3")
    assert "out" in tools.stream_command("echo out")
    started = tools.run_background_command("sleep 1000")
    assert "terminated" in tools.kill_background_command(started), started


def ports() -> None:
    """Reach a server inside by the URL that the toolkit gives."""
    url = tools.run_server("python3 -m http.server 8000 -d /home/user", 8000)
    assert url == tools.get_public_url(8000)
    tools.run_command("curl -s --retry 50 --retry-delay 1 --retry-connrefused localhost:8000")
    with urllib.request.urlopen(f"{url}/new.txt", timeout=10) as answer:
        assert answer.read() == b"new"


def broken() -> None:
    """Call what agno itself has broken, so that a version which mends it is noticed."""
    assert "bytes-like object" in tools.download_file_from_sandbox("/home/user/new.txt", "new.txt")
    assert "get_change" in tools.watch_directory("/home/user", 1)
    assert tools.get_sandbox_status() == "Unknown"
    assert "not iterable" in tools.list_running_sandboxes()


code()
files()
commands()
ports()
broken()
assert tools.set_sandbox_timeout(900) == "900"
assert json.loads(tools.shutdown_sandbox())["status"] == "success"
