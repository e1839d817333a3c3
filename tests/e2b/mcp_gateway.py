"""The MCP gateway, as E2B's Python SDK starts it, with the template that mcp_gateway.mjs makes."""
import json
import os
import urllib.request

from e2b import Sandbox
from e2b.exceptions import SandboxException

with Sandbox.create("js-mcp", mcp={"greeter": {"greeting": "salut"}}) as sandbox:
    assert sandbox.get_mcp_url().startswith(f"https://50005-{sandbox.sandbox_id}."), sandbox.get_mcp_url()
    token = sandbox.get_mcp_token()
    assert token and Sandbox.connect(sandbox.sandbox_id).get_mcp_token() == token
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "greet", "arguments": {"whom": "monde"}}}
    request = urllib.request.Request(
        os.environ["E2B_SANDBOX_URL"] + "/mcp",
        json.dumps(call).encode(),
        {
            "E2b-Sandbox-Id": sandbox.sandbox_id,
            "E2b-Sandbox-Port": "50005",
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        },
    )
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer)["result"]["content"][0]["text"] == "salut monde"

try:
    Sandbox.create("js-mcp", mcp={"github/owner/repo": {"runCmd": "python3 x.py", "unknown": "x"}})
    raise AssertionError("it was started")
except SandboxException as e:
    assert "Failed to start MCP gateway" in str(e) and "github/owner/repo" in str(e), e
print("ok")
