"""An agent tries several ways from one state, keeps the best, and goes back when it went wrong."""

from cloud_sandbox import Sandbox

with Sandbox.create(user_id="examples") as sandbox:
    sandbox.run_code("import json; words = ['pause', 'resume', 'fork']")

    # Paused, it costs disk alone; the next call wakes it, with all its variables.
    print("it is", sandbox.pause().state)
    print("words:", sandbox.run_code("len(words)").result)

    # Each fork goes on from here by itself.
    ways = ["sorted(words)", "words[::-1]", "no_such_name"]
    for way, fork in zip(ways, sandbox.fork(len(ways)), strict=True):
        with fork:
            tried = fork.run_code(f"words = {way}; json.dumps(words)")
            print(way, "->", tried.result if tried.ok else tried.status)

    # A Snapshot is for going back.
    good = sandbox.snapshot("good")
    sandbox.run_command("rm -rf /workspace; false")
    sandbox.run_code("words.clear()")
    sandbox.rollback(good)
    print("back again:", sandbox.run_code("words").result)
