"""Every method of E2B's Python Template builder, as methods.mjs has those of JavaScript's.

Left out for the same reasons: bun_install and the beta methods of dev containers.
"""
import asyncio
import json
import os
import tempfile

from e2b import AsyncSandbox, AsyncTemplate, CopyItem, Sandbox, Template, wait_for_file, wait_for_port, wait_for_process, wait_for_timeout, wait_for_url
from e2b.exceptions import BuildException

here = tempfile.mkdtemp()
os.makedirs(here + "/folder/deep")
for path, text in {"one": "1", "two": "2", "folder/three": "3", "folder/deep/four": "4"}.items():
    with open(os.path.join(here, path), "w") as f:
        f.write(text)


def begin():
    return Template(file_context_path=here)


def fails(template, why):
    try:
        Template.build(template, "py-begins")
    except BuildException as e:
        assert why in str(e), (why, e)
        return
    raise AssertionError("it was built: " + why)


dockerfile = "FROM debian:bookworm\nENV A=from-docker\nUSER root\nWORKDIR /srv\nRUN [ \"$A$(pwd)$(id -un)\" = from-docker/srvroot ]\n"
for start in [
    begin().from_debian_image("bookworm"), begin().from_ubuntu_image("22.04"), begin().from_python_image("3.12"), begin().from_node_image("22"),
    begin().from_base_image(), begin().from_image("docker.io/library/python:3.11-slim"), begin().from_template("base"), begin().from_dockerfile(dockerfile),
]:  # fmt: skip
    fails(start.run_cmd("exit 9"), "exit code 9")
for start, why in [
    (begin().from_bun_image(), 'no template of this server stands for the image "oven/bun:latest"'), (begin().from_fedora_image(), "no template"),
    (begin().from_alpine_image(), "no template"), (begin().from_arch_image(), "no template"), (begin().from_image("nobody/knows:1"), "CLOUD_SANDBOX_E2B_TEMPLATES"),
    (begin().from_image("debian:bookworm", username="a", password="b"), "fromImageRegistry"),
    (begin().from_aws_registry("1.dkr.ecr.us-east-1.amazonaws.com/a:1", "a", "b", "us-east-1"), "fromImageRegistry"),
    (begin().from_gcp_registry("gcr.io/a/b:1", {"type": "service_account", "project_id": "p"}), "fromImageRegistry"),
    (begin().from_template("no-such-template"), "no-such-template"),
]:  # fmt: skip
    fails(start.run_cmd("true"), why)
assert not Template.exists("py-begins")

wheel = """python3 -c "
import zipfile
with zipfile.ZipFile('/opt/brought-1.0-py3-none-any.whl', 'w') as z:
    z.writestr('brought.py', 'value = 42')
    z.writestr('brought-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: brought\\nVersion: 1.0\\n')
    z.writestr('brought-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    z.writestr('brought-1.0.dist-info/RECORD', '')
"
"""
commit = "git -c user.name=a -c user.email=a@b commit -q"
template = (
    begin()
    .from_base_image()
    .set_envs({"FIRST": "one", "SECOND": "$FIRST-two"})
    .run_cmd(["mkdir -p made", 'echo "$SECOND" > made/env'])
    .copy("one", "one.txt")
    .copy_items([CopyItem(src="folder", dest="/srv/folder"), CopyItem(src="two", dest="/srv/two", mode=0o755, user="user", forceUpload=True)])
    .make_dir("/home/user/dir/below", mode=0o750)
    .make_dir(["a b", "c"])
    .make_symlink("/srv/two", "link")
    .make_symlink("/srv/folder", "link", force=True)
    .rename("one.txt", "renamed.txt")
    .rename("renamed.txt", "c/renamed again.txt", force=True)
    .remove(["a b", "nothing"], recursive=True, force=True)
    .run_cmd(wheel, user="root")
    .pip_install("/opt/brought-1.0-py3-none-any.whl")
    .pip_install(["--force-reinstall", "/opt/brought-1.0-py3-none-any.whl"], g=False)
    .run_cmd(
        "mkdir -p /opt/tool && cd /opt/tool && echo '{\"name\":\"tool\",\"version\":\"1.0.0\",\"bin\":\"tool.js\"}' > package.json"
        " && printf '#!/usr/bin/env node\\nconsole.log(\"a tool\")' > tool.js && chmod 755 tool.js",
        user="root",
    )
    .npm_install("/opt/tool", g=True)
    .set_workdir("project")
    .run_cmd("npm init -y > /dev/null && cp -r /opt/tool ..")
    .npm_install(["../tool"], dev=True)
    .run_cmd(f"git init -q -b main /tmp/repo && cd /tmp/repo && {commit} --allow-empty -m x && echo r > r && git add r && {commit} -m y && git branch other")
    .git_clone("file:///tmp/repo", "cloned", branch="other", depth=1)
    .run_cmd("rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*", user="root")
    .apt_install("bash")
    .apt_install(["bash", "coreutils"], no_install_recommends=True, fix_missing=True)
    .set_user("worker")
    .set_workdir("/work")
    .skip_cache()
    .run_cmd("id -un > mine; echo $FIRST >> mine")
    .set_ready_cmd(wait_for_file("/work/mine"))
)
assert Template.to_dockerfile(template).startswith("FROM e2bdev/base\nENV FIRST=one")
assert json.loads(Template.to_json(template))["steps"][0]["type"] == "ENV"


async def build():
    """It is built by the asynchronous flavour, and looked at."""
    info = await AsyncTemplate.build(template, "py-methods", tags=["v1", "stable"], cpu_count=1, memory_mb=512)
    assert sorted(info.tags) == ["stable", "v1"], info
    sandbox = await AsyncSandbox.create("py-methods:v1")
    for command, output in {
        "cat /home/user/made/env": "one-two", 'cat "/home/user/c/renamed again.txt"': "1", 'stat -c "%U %a" /srv/two': "user 755",
        "cat /srv/folder/three /srv/folder/deep/four": "34", 'stat -c "%U %a" /home/user/dir/below': "user 750", "cat /home/user/link/three": "3",
        'ls -d "/home/user/a b" 2>/dev/null || echo gone': "gone", 'cd / && python3 -c "import brought; print(brought.value)"': "42",
        "ls -d /home/user/.local/lib/python3*/site-packages/brought.py | wc -l": "1", "tool": "a tool",
        "cd /home/user/project && ls node_modules && cat cloned/r": "tool\nr", "cat /work/mine": "worker\none",
    }.items():  # fmt: skip
        said = (await sandbox.commands.run(command, user="root")).stdout.strip()
        assert said == output, (command, said)
    assert (await sandbox.commands.run("id -un; pwd")).stdout == "worker\n/work\n"
    await sandbox.kill()


asyncio.run(build())
with Sandbox.create("py-methods:stable") as sandbox:
    sandbox.commands.run("python3 -m http.server 8099", background=True)

    def ready(command):
        """Whether it says that what is waited for is there."""
        return sandbox.commands.run(f"if {command.get_cmd()}; then echo yes; else echo no; fi", user="root").stdout.strip() == "yes"

    while not ready(wait_for_port(8099)):
        pass
    for no, yes in [
        (wait_for_url("http://localhost:8099/mine", 404), wait_for_url("http://localhost:8099/mine")),
        (wait_for_process("no-such-thing"), wait_for_process("python3")), (wait_for_file("/work/none"), wait_for_file("/work/mine")),
    ]:  # fmt: skip
        assert ready(yes) and not ready(no), yes.get_cmd()
    assert not ready(wait_for_port(8098))
    assert wait_for_timeout(2500).get_cmd() == "sleep 2"
print("ok")
