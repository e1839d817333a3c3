# What a user of an SDK does who wants a sandbox that asks for no token.
from e2b import Sandbox

with Sandbox.create(template="base", timeout=600, secure=False) as sb:
    sb.files.write("/tmp/a", "b")
    assert sb.commands.run("cat /tmp/a").stdout == "b"
    assert Sandbox.connect(sb.sandbox_id).files.read("/tmp/a") == "b"
