"""Four threads that multiply, and memory that must stay as it is."""

import hashlib
import sys
import threading
import time

import numpy as np

live = np.random.default_rng(7).random((1600, 1600))
digest = hashlib.sha256(live.tobytes()).hexdigest()
small = live[:100, :100].copy()
product = small @ small
ticks = [0] * 4
wrong: list[int] = []


def work(i: int) -> None:
    while True:
        if not np.allclose(small @ small, product):
            wrong.append(i)
        ticks[i] += 1
        time.sleep(0.1)


def check() -> str:
    before = list(ticks)
    deadline = time.monotonic() + 30
    while any(now == then for now, then in zip(ticks, before)):
        if time.monotonic() > deadline:
            return f"threads stand still: {before}, then {ticks}"
        time.sleep(0.01)
    if wrong:
        return f"threads {wrong} multiplied wrongly"
    if hashlib.sha256(live.tobytes()).hexdigest() != digest:
        return "the array is another one"
    return ""


for i in range(4):
    threading.Thread(target=work, args=(i,), daemon=True).start()
print("ready", flush=True)
for n, _ in enumerate(sys.stdin, 1):
    bad = check()
    print(f"bad {n}: {bad}" if bad else f"ok {n}", flush=True)
