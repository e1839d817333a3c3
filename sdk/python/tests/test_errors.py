from __future__ import annotations

import pickle

import pytest

from cloud_sandbox import CloudSandboxError, SandboxTimeoutError, errors

# The codes of the API, as sandbox.Codes() in Go lists them.
CODES = [
    "invalid",
    "unauthenticated",
    "denied",
    "too_large",
    "timeout",
    "not_found",
    "conflict",
    "exhausted",
    "unsupported",
    "unavailable",
    "internal",
]


def test_each_code_has_a_class_of_its_own() -> None:
    assert sorted(errors._BY_CODE) == sorted(CODES)
    assert len(set(errors._BY_CODE.values())) == len(CODES)
    for code, cls in errors._BY_CODE.items():
        error = errors.error_from(code, "why", status_code=418, retry_after=2)
        assert type(error) is cls
        assert (str(error), error.code, error.retry_after) == ("why", code, 2)


def test_every_class_is_exported() -> None:
    import cloud_sandbox

    for name in errors.__all__:
        assert getattr(cloud_sandbox, name) is getattr(errors, name)


@pytest.mark.parametrize(
    ("status", "code"), [(418, "invalid"), (505, "internal"), (502, "unavailable")]
)
def test_unknown_codes_are_judged_by_status(status: int, code: str) -> None:
    error = errors.error_from("new", "why", status_code=status, retry_after=None)
    assert type(error) is errors._BY_CODE[code]
    assert error.code == "new"


def test_timeouts_are_the_builtin_one_too() -> None:
    assert issubclass(SandboxTimeoutError, TimeoutError)


def test_errors_survive_pickling() -> None:
    classes: list[type[CloudSandboxError]] = [CloudSandboxError, *errors._BY_CODE.values()]
    for cls in classes:
        error = cls("why", status_code=400, retry_after=1.5)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.retry_after) == (cls, "why", 1.5)
