"""A client of server.py that keeps its connection, and can make others."""

import http.client
import sys
import time

PORT = 18080


def connected() -> http.client.HTTPConnection:
    for _ in range(600):
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
        try:
            connection.connect()
        except OSError:
            time.sleep(0.05)
        else:
            return connection
    raise SystemExit("bad: nobody listens")


def ask(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/")
    return int(connection.getresponse().read())


kept = connected()
mine = ask(kept)


def check() -> str:
    if (asked := ask(kept)) != mine:
        return f"the connection from port {mine} is now one from {asked}"
    if ask(connected()) == mine:
        return "a new connection is the old one"
    return ""


print("ready", flush=True)
for n, _ in enumerate(sys.stdin, 1):
    bad = check()
    print(f"bad {n}: {bad}" if bad else f"ok {n}", flush=True)
