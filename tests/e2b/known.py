"""What users of E2B's templates do with them: known.py NAME."""

import struct
import sys
import time

from e2b import Sandbox


def claude():
    sb = Sandbox.create("claude", timeout=600)
    assert "Claude Code" in sb.commands.run("claude --version", timeout=120).stdout
    assert "permission-mode" in sb.commands.run("claude --help", timeout=120).stdout
    sb.kill()


def codex():
    sb = Sandbox.create("codex", timeout=600)
    assert "codex" in sb.commands.run("codex --version", timeout=120).stdout
    assert "exec" in sb.commands.run("codex --help", timeout=120).stdout
    sb.kill()


def code_interpreter():
    from e2b_code_interpreter import Sandbox as Interpreter

    sb = Interpreter.create(timeout=600)
    made = sb.run_code("""
import matplotlib, matplotlib.pyplot as plt, numpy, pandas, PIL, scipy, sklearn
plt.plot([1, 2, 3]); plt.title("a figure"); plt.show()
print(tuple(int(n) for n in matplotlib.__version__.split(".")[:2]) >= (3, 10))""")
    assert made.error is None and made.logs.stdout == ["True\n"] and made.results[0].png and made.results[0].chart.title == "a figure", made
    sb.kill()


def desktop():
    from e2b_desktop import Sandbox as Desktop

    sb = Desktop.create(timeout=600, resolution=(1280, 720))

    def size(png):
        assert png[:8] == b"\x89PNG\r\n\x1a\n", bytes(png[:16])
        return struct.unpack(">II", png[16:24])

    assert size(sb.screenshot()) == (1280, 720) == sb.get_screen_size()
    sb.move_mouse(100, 200)
    assert sb.get_cursor_position() == (100, 200)
    before = sb.screenshot()
    sb.launch("xfce4-terminal")

    def until(what, seconds=60):
        end = time.time() + seconds
        while not (got := what()):
            assert time.time() < end, "it does not come"
            time.sleep(0.5)
        return got

    def windows(of):
        return sb.commands.run(f"xdotool search --onlyvisible --class {of} || true").stdout.split()

    window = until(lambda: windows("xfce4-terminal"))[0]
    assert "user@" in sb.get_window_title(window) or "Terminal" in sb.get_window_title(window)
    assert sb.screenshot() != before
    until(lambda: sb.get_current_window_id() == window)
    sb.write("echo from the keyboard > /tmp/typed")
    sb.press("enter")
    until(lambda: sb.files.exists("/tmp/typed"))
    assert sb.files.read("/tmp/typed") == "from the keyboard\n"
    sb.stream.start(require_auth=True)
    assert "noVNC" in sb.commands.run("curl -sf http://localhost:6080/vnc.html").stdout and sb.stream.get_auth_key()
    sb.stream.stop()
    sb.files.write("/tmp/page.html", "<title>a page of ours</title>")
    sb.open("/tmp/page.html")
    until(lambda: any("a page of ours" in sb.get_window_title(w) for w in windows("chromium")), 120)
    sb.launch("google-chrome", "file:///tmp/page.html")
    sb.kill()


globals()[sys.argv[1]]()
