from __future__ import annotations

import pytest

from cloud_sandbox._settings import Settings, resolve

ENV = {"CLOUD_SANDBOX_URL": "https://env:1/", "CLOUD_SANDBOX_API_KEY": "env-key"}


@pytest.mark.parametrize(
    ("base_url", "user_id", "api_key", "token", "environ", "want"),
    [
        (None, None, None, None, {}, Settings("http://localhost:8080", None, "test")),
        ("http://a", None, None, None, {}, Settings("http://a")),
        (
            None,
            None,
            None,
            None,
            {"CLOUD_SANDBOX_USER_ID": "bob"},
            Settings("http://localhost:8080", None, "bob"),
        ),
        (None, None, None, None, ENV, Settings("https://env:1", "env-key")),
        ("http://a", "ann", None, None, ENV, Settings("http://a", None, "ann")),
        ("http://a/", None, "key", None, ENV, Settings("http://a", "key")),
        ("http://a/b/", "ann", None, "tok", ENV, Settings("http://a/b", "tok", "ann")),
        (
            None,
            None,
            None,
            None,
            {"CLOUD_SANDBOX_API_KEY": ""},
            Settings("http://localhost:8080", None, "test"),
        ),
    ],
)
def test_resolve(
    base_url: str | None,
    user_id: str | None,
    api_key: str | None,
    token: str | None,
    environ: dict[str, str],
    want: Settings,
) -> None:
    assert resolve(base_url, user_id, api_key, token, environ) == want


@pytest.mark.parametrize(
    "url", ["localhost:8080", "ftp://a", "http://", "http://u:p@a", "http://a?b", "http://a#b"]
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        resolve(url, None, None, None, {})


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ü"])
def test_bad_tokens(token: str) -> None:
    with pytest.raises(ValueError, match="token") as caught:
        resolve(None, None, None, token, {})
    assert not token or repr(token) not in str(caught.value)


def test_token_and_key() -> None:
    with pytest.raises(ValueError, match="not both"):
        resolve(None, None, "a", "b", {})


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://localhost:1", True),
        ("http://127.8.9.1", True),
        ("http://[::1]:80", True),
        ("http://localhost.example", False),
        ("http://10.0.0.1", False),
    ],
)
def test_loopback(url: str, loopback: bool) -> None:
    assert Settings(url).loopback is loopback


def test_a_bearer_is_not_printed() -> None:
    assert "secret" not in repr(Settings("http://a", "secret"))
