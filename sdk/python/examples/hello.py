"""Run code, a command, and move files: the shortest tour."""

from cloud_sandbox import Sandbox

with Sandbox.create(user_id="examples") as sandbox:
    execution = sandbox.run_code("print('Hello from', __import__('platform').node())")
    print(execution.stdout, end="")

    sandbox.write_file("numbers.csv", "n\n1\n2\n3\n")
    total = sandbox.run_command("awk 'NR > 1 { sum += $1 } END { print sum }' numbers.csv")
    print("sum:", total.stdout, end="")

    for entry in sandbox.list_files():
        print(entry.mode, entry.size_bytes, entry.name)
