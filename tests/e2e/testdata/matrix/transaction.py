"""A transaction of SQLite that is open while the program is not asked anything."""

import sqlite3
import subprocess
import sys

PATH = "/workspace/matrix/database"
INTRUDE = f"""import sqlite3
try:
    sqlite3.connect({PATH!r}, timeout=0, isolation_level=None).execute("begin immediate")
    print("free")
except sqlite3.OperationalError as e:
    print(e)"""

db = sqlite3.connect(PATH, isolation_level=None)
db.execute("pragma journal_mode=wal")
db.execute("create table t (n integer)")
other = sqlite3.connect(PATH, isolation_level=None)


def count(of: sqlite3.Connection) -> int:
    return int(of.execute("select count(*) from t").fetchone()[0])


def begin(n: int) -> None:
    db.execute("begin immediate")
    db.execute("insert into t values (?)", (n,))


def check(n: int) -> str:
    if (count(db), count(other)) != (n, n - 1):
        return f"inside {count(db)} rows and outside {count(other)}, not {n} and {n - 1}"
    intruder = subprocess.run([sys.executable, "-c", INTRUDE], capture_output=True, text=True, check=False)
    if intruder.stdout != "database is locked\n":
        return f"another process finds the database {intruder.stdout} {intruder.stderr}"
    db.execute("commit")
    if count(other) != n:
        return f"after the commit there are {count(other)} rows"
    if db.execute("pragma integrity_check").fetchone() != ("ok",):
        return "the database is damaged"
    return ""


begin(1)
print("ready", flush=True)
for n, _ in enumerate(sys.stdin, 1):
    bad = check(n)
    print(f"bad {n}: {bad}" if bad else f"ok {n}", flush=True)
    if not bad:
        begin(n + 1)
