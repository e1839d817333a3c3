"""Where the server is and who asks: arguments first, then the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

DEFAULT_BASE_URL = "http://localhost:8080"
ENV_URL = "CLOUD_SANDBOX_URL"
ENV_KEY = "CLOUD_SANDBOX_API_KEY"
ENV_USER = "CLOUD_SANDBOX_USER_ID"
# The same as the command line's, so that both see the same sandboxes.
DEFAULT_USER_ID = "test"


@dataclass(frozen=True)
class Settings:
    """What a connection needs to know.

    Attributes:
        base_url: address of the server, without a slash at its end.
        bearer: what to send as a bearer token; ``None`` to send none, or one
            minted for ``user_id``.
        user_id: for whom to mint tokens; used only without a bearer. ``None``
            without a bearer: nothing says who asks.
    """

    base_url: str
    bearer: str | None = field(default=None, repr=False)
    user_id: str | None = None

    @property
    def loopback(self) -> bool:
        """Whether the server is on this machine, where no proxy is in between."""
        host = urlsplit(self.base_url).hostname or ""
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False


def resolve(
    base_url: str | None,
    user_id: str | None,
    api_key: str | None,
    token: str | None,
    environ: Mapping[str, str],
) -> Settings:
    """Fill in what was not given.

    An explicit ``user_id`` is stronger than a key of the environment. With
    neither, and a server on this machine, which may be in dev mode, it is that of
    the environment or ``DEFAULT_USER_ID``. Values that cannot work are a ValueError,
    which never contains the key.
    """
    if token is not None and api_key is not None:
        raise ValueError("pass token or api_key, not both")
    bearer = token if token is not None else api_key
    if bearer is None and user_id is None:
        bearer = environ.get(ENV_KEY) or None
    if bearer is not None and not (bearer.isascii() and bearer.isprintable() and " " not in bearer):
        raise ValueError("the token or API key holds characters that no token has")
    if bearer == "" or user_id == "":
        raise ValueError("token, api_key and user_id must not be empty")
    settings = Settings(
        base_url=_checked_url(base_url or environ.get(ENV_URL) or DEFAULT_BASE_URL),
        bearer=bearer,
        user_id=user_id,
    )
    if bearer is None and user_id is None and settings.loopback:
        return replace(settings, user_id=environ.get(ENV_USER) or DEFAULT_USER_ID)
    return settings


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"base_url must begin with http:// or https:// and a host, not {url!r}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("base_url must hold no user, password, query or fragment")
    return url.rstrip("/")
