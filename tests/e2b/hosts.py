"""What get_host() gives leads to the server, and never to E2B's own cloud."""

import sys
import time
import urllib.error
import urllib.request

from e2b_code_interpreter import Sandbox

domain, scheme = sys.argv[1:]
sb = Sandbox.create(timeout=120)
host = sb.get_host(8000)
assert host == f"8000-{sb.sandbox_id}.{domain}", host
if scheme:
    assert sb.run_code("print(40 + 2)").logs.stdout == ["42\n"]
    sb.commands.run("cd /tmp && echo served >index.html && exec python3 -m http.server 8000", background=True)
    end = time.monotonic() + 60
    while True:
        try:
            body = urllib.request.urlopen(f"{scheme}://{host}/").read()
            break
        except urllib.error.HTTPError as e:  # nobody listens yet
            assert e.code == 502 and time.monotonic() < end, e
            time.sleep(0.05)
    assert body == b"served\n", body
    assert Sandbox.connect(sb.sandbox_id).get_host(8000) == host
Sandbox.kill(sb.sandbox_id)
