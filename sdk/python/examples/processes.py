"""Start a server, wait until it answers, and follow a long command to its end."""

from cloud_sandbox import Sandbox

with Sandbox.create(user_id="examples") as sandbox:
    sandbox.write_file("index.html", "hello from inside")
    server = sandbox.processes.start("python3 -u -m http.server 8000", name="web")
    if not server.wait_for_http(8000, timeout_seconds=30):
        raise SystemExit(server.output().text)
    print(sandbox.run_command("curl -s localhost:8000").stdout)

    # `run` goes on through broken connections; what it started is started once.
    build = sandbox.processes.run(
        "for n in 1 2 3; do echo step $n; sleep 0.2; done", on_stdout=print
    )
    print("build:", build.status, build.exit_code)

    # Commands of a shell share its folder and variables.
    sandbox.processes.run("mkdir -p app; cd app; STAGE=test", shell="main")
    print(sandbox.processes.run("echo $PWD $STAGE", shell="main").stdout, end="")

    print("log:", server.output(-200, "stderr").text.splitlines()[-1])
    print("ended with", server.kill().exit_code)
