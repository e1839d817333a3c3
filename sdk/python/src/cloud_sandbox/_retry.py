"""When to try again, and after how long. A pure rule, the same for every transport."""

from __future__ import annotations

from enum import Enum

MAX_RETRIES = 3
# A server that asks for more patience than this, in all, is left to the caller.
MAX_WAIT_SECONDS = 120.0
_BASE_SECONDS = 0.1
_CAP_SECONDS = 2.0
_PATIENT_SECONDS = 10.0


class Failure(Enum):
    """How a try failed."""

    NOT_SENT = "not_sent"  # no connection, so the server saw nothing
    LOST = "lost"  # the connection broke; the server may have acted
    # 429 or 503. With advice when to come back, the request did nothing.
    TURNED_AWAY = "turned_away"
    UNDER_WAY = "under_way"  # what an earlier try began has not ended


def wait_before(
    retry: int,
    failure: Failure,
    *,
    repeatable: bool,
    replayable: bool,
    retry_after: float | None,
    chance: float,
    waited: float = 0.0,
    max_retries: int = MAX_RETRIES,
) -> float | None:
    """Return the seconds to wait before a retry, or None to give up.

    Args:
        retry: 1 for the first retry.
        failure: how the last try failed.
        repeatable: doing the request twice is the same as doing it once.
        replayable: the body can be sent again from its beginning.
        retry_after: the server's advice in seconds, if it gave any.
        chance: a random number in [0, 1), which keeps clients apart.
        waited: the seconds that were waited before, as the server asked.
        max_retries: give up after this many.
    """
    if retry > max_retries:
        return None
    if failure is Failure.NOT_SENT:
        return backoff(retry, chance)
    if not replayable:
        return None
    if failure in (Failure.TURNED_AWAY, Failure.UNDER_WAY) and retry_after is not None:
        # Never earlier than told, and later the longer it has been waited.
        pause = max(retry_after, min(waited / 4, _PATIENT_SECONDS))
        if waited + pause > MAX_WAIT_SECONDS:
            return None
        return pause + chance * max(_BASE_SECONDS, pause / 10)  # not all at the same moment
    return backoff(retry, chance) if repeatable else None


def backoff(retry: int, chance: float) -> float:
    """Return a pause in seconds that grows with each retry, up to two."""
    ceiling = min(_CAP_SECONDS, _BASE_SECONDS * 2.0 ** min(retry - 1, 16))
    return ceiling * (0.5 + chance / 2)
