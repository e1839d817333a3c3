"""Show output while code runs, and stop code that takes too long."""

import sys

from cloud_sandbox import Sandbox

CODE = """
import sys, time
for step in range(3):
    print("step", step, flush=True)
    time.sleep(0.2)
print("careful", file=sys.stderr)
"""

with Sandbox.create(user_id="examples") as sandbox:
    execution = sandbox.run_code(CODE, on_stdout=sys.stdout.write, on_stderr=sys.stderr.write)
    print("status:", execution.status)

    execution = sandbox.run_code("while True: pass", timeout_seconds=1)
    print("status:", execution.status)
