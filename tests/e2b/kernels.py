"""R and Java in the code interpreter, by E2B's unmodified Python SDK, in the
Sandbox that SANDBOX_ID names, which kernels.mjs has used."""

import os

from e2b_code_interpreter import Sandbox

sb = Sandbox.connect(os.environ["SANDBOX_ID"])
patience = {"timeout": 240, "request_timeout": 240}
assert sb.run_code("x", language="r", **patience).text == "[1] 41"
assert sb.run_code("x", language="java", **patience).text == "41"
print("ok")
