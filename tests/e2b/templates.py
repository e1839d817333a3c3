"""Templates built by the SDK: what is made, what is told, and what fails."""
import asyncio
import os
import sys
import tempfile

from e2b import AsyncTemplate, Sandbox, Template, wait_for_port
from e2b.exceptions import BuildException, TemplateException

NAME = "py-built"

here = tempfile.mkdtemp()
os.makedirs(here + "/site/css")
for path, text in {"one.txt": "1", "two.txt": "2", "site/index.html": "<h1>", "site/css/a.css": "a{}", "site/.hidden": "h", "run.sh": "#!/bin/sh\necho ran"}.items():
    with open(os.path.join(here, path), "w") as f:
        f.write(text)
os.symlink("index.html", here + "/site/link")

lines = []
template = (
    Template(file_context_path=here)
    .from_base_image()
    .set_envs({"GREETING": "hello", "WHOM": "${GREETING}-world"})
    .run_cmd('echo "$WHOM" > out.txt')
    .run_cmd("echo root > /root.txt && echo kept > /tmp/kept", user="root")
    .make_dir("/opt/tool", user="root")
    .remove("/etc/debian_version", user="root")
    .copy("one.txt", "/home/user/renamed.txt")
    .copy(["one.txt", "two.txt"], "/home/user/files/", user="root")
    .copy("*.txt", "/opt/all", user="root:user", mode=0o640)
    .copy("site", "/srv/site")
    .copy("run.sh", "/usr/local/bin/run-me", mode=0o755)
    .set_workdir("/app")
    .copy("two.txt", "here/deep.txt")
    .run_cmd(["whoami > who", "pwd >> who", "echo told >&2"])
    .set_start_cmd("cd /srv/site && echo up > /tmp/started && echo starting && exec python3 -m http.server 8123", wait_for_port(8123))
)
info = Template.build(template, NAME + ":v1", tags=["stable"], cpu_count=2, memory_mb=1024, on_build_logs=lambda e: lines.append(e.message))
assert (info.name, info.tags) == (NAME + ":v1", ["v1", "stable"]), info
assert any("told" in line for line in lines), lines
assert any(line.startswith("[builder 2/14] RUN") for line in lines), lines
assert "[start] [stdout]: starting" in lines, lines
assert Template.exists(NAME)
assert not Template.exists("no-such-template")
status = Template.get_build_status(info)
assert status.status.value == "ready", status

for tag in ["v1", "stable"]:
    with Sandbox.create(f"{NAME}:{tag}") as sandbox:
        said = sandbox.commands.run("pwd; cat who /root.txt /tmp/kept /home/user/out.txt; echo $GREETING; ls -d /opt/tool /etc/debian_version || true").stdout
        assert said.split() == ["/app", "user", "/app", "root", "kept", "hello-world", "hello", "/opt/tool"], said
        assert sandbox.commands.run("sudo id -u").stdout.strip() == "0"
        said = sandbox.commands.run(
            "cat /home/user/renamed.txt /home/user/files/*.txt /opt/all/*.txt; stat -c '%U:%G %a' /home/user/renamed.txt /home/user/files/one.txt /opt/all/one.txt;"
            " run-me; cat here/deep.txt; ls -A /srv/site; cat /srv/site/css/a.css /srv/site/link; curl -s localhost:8123/index.html; cat /tmp/started"
        ).stdout
        assert said == "11212user:user 644\nroot:root 644\nroot:user 640\nran\n2.hidden\ncss\nindex.html\nlink\na{}<h1><h1>up\n", said
        facts = sandbox.get_info()
        assert (facts.cpu_count, facts.memory_mb) == (2, 1024), facts
try:
    Sandbox.create(NAME)  # it has no tag "default"
    raise AssertionError("it was made")
except Exception as e:
    assert "not found" in str(e), e


tagged = Template.assign_tags(NAME + ":v1", ["production", "default"])
assert (tagged.build_id, sorted(tagged.tags)) == (info.build_id, ["default", "production"]), tagged
Template.remove_tags(NAME, ["stable", "production"])
assert sorted((t.tag, str(t.build_id)) for t in Template.get_tags(NAME)) == [("default", info.build_id), ("v1", info.build_id)]
for bad in [lambda: Template.remove_tags(NAME, ["default"]), lambda: Template.assign_tags(NAME + ":none", ["x"])]:
    try:
        bad()
        raise AssertionError("it was done")
    except TemplateException:
        pass


async def failing():
    """A build in the background that fails, and one that cannot begin."""
    told = await AsyncTemplate.build_in_background(
        AsyncTemplate().from_template("base").run_cmd("echo fine").run_cmd("echo why >&2; exit 3"), "py-failing"
    )
    while True:
        status = await AsyncTemplate.get_build_status(told)
        if status.status.value not in ("waiting", "building"):
            break
        await asyncio.sleep(0.1)
    assert status.status.value == "error" and status.reason.step == "2", status
    assert "exit code 3" in status.reason.message and "why" in status.reason.message, status.reason
    assert not await AsyncTemplate.exists("py-failing")
    again = []
    try:
        await AsyncTemplate.build(
            AsyncTemplate().from_template("base").run_cmd("echo fine").run_cmd("exit 4"), "py-failing", on_build_logs=lambda e: again.append(e.message)
        )
        raise AssertionError("it was built")
    except BuildException:
        pass
    assert any("CACHED [builder 1/2] RUN echo fine" in line for line in again), again
    for asked in [AsyncTemplate().from_image("nobody/knows:1"), AsyncTemplate().from_template("no-such-template")]:
        try:
            await AsyncTemplate.build(asked, "py-failing")
            raise AssertionError("it was built")
        except BuildException:
            pass


asyncio.run(failing())
print("ok")
sys.stdout.flush()
os._exit(0)  # threads of the SDK may abort while the interpreter ends
