from __future__ import annotations

import pytest

from cloud_sandbox._retry import MAX_RETRIES, MAX_WAIT_SECONDS, Failure, wait_before


@pytest.mark.parametrize(
    ("failure", "repeatable", "replayable", "retry_after", "retries"),
    [
        (Failure.NOT_SENT, False, False, None, True),  # nothing was sent, not even the body
        (Failure.LOST, True, True, None, True),
        (Failure.LOST, False, True, None, False),  # it may have happened
        (Failure.LOST, True, False, None, False),  # the body is used up
        (Failure.TURNED_AWAY, False, True, 1.0, True),
        (Failure.TURNED_AWAY, False, True, None, False),
        (Failure.TURNED_AWAY, True, True, None, True),
        (Failure.TURNED_AWAY, True, False, 1.0, False),
        (Failure.TURNED_AWAY, True, True, MAX_WAIT_SECONDS + 1, False),
    ],
)
def test_when(
    failure: Failure,
    repeatable: bool,
    replayable: bool,
    retry_after: float | None,
    retries: bool,
) -> None:
    def wait(retry: int) -> float | None:
        return wait_before(
            retry,
            failure,
            repeatable=repeatable,
            replayable=replayable,
            retry_after=retry_after,
            chance=0.5,
        )

    assert (wait(1) is not None) is retries
    assert wait(MAX_RETRIES + 1) is None


def test_patience_with_a_busy_server_is_bounded_in_all() -> None:
    def wait(waited: float) -> float | None:
        return wait_before(
            1,
            Failure.TURNED_AWAY,
            repeatable=False,
            replayable=True,
            retry_after=10.0,
            chance=0.0,
            waited=waited,
        )

    assert wait(MAX_WAIT_SECONDS - 10) == 10.0
    assert wait(0.0) == 10.0
    assert wait(MAX_WAIT_SECONDS - 9) is None


def test_waits_grow_and_never_undercut_the_advice() -> None:
    def waits(retry_after: float | None, chance: float) -> list[float]:
        found = [
            wait_before(
                retry,
                Failure.TURNED_AWAY,
                repeatable=True,
                replayable=True,
                retry_after=retry_after,
                chance=chance,
            )
            for retry in (1, 2, 3)
        ]
        return [wait for wait in found if wait is not None]

    assert waits(None, 0.0) == [0.05, 0.1, 0.2]
    assert waits(None, 0.999)[2] < 0.4
    assert waits(5.0, 0.0) == [5.0] * 3
    assert all(5.0 < wait < 5.5 for wait in waits(5.0, 0.99))


def test_short_advice_is_not_followed_for_minutes() -> None:
    waited, asked = 0.0, 0
    while True:
        pause = wait_before(
            1,
            Failure.TURNED_AWAY,
            repeatable=False,
            replayable=True,
            retry_after=1.0,
            chance=0.0,
            waited=waited,
        )
        if pause is None:
            break
        waited, asked = waited + pause, asked + 1
    assert asked < 25
    assert waited > MAX_WAIT_SECONDS - 10
