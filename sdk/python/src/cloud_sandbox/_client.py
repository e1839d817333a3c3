"""The synchronous connection to a server."""

from __future__ import annotations

import os
import random
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

import httpx

from . import _settings, _wire
from ._retry import Failure, wait_before
from ._version import __version__
from ._wire import Request
from .errors import (
    AuthenticationError,
    CloudSandboxError,
    ConnectionFailedError,
    SandboxTimeoutError,
)

__all__ = ["Client"]

_CONNECT_SECONDS = 10.0
_WRITE_SECONDS = 60.0
# A minted token is replaced this long before it expires.
_TOKEN_MARGIN_SECONDS = 60.0


@dataclass(frozen=True)
class _Failed:
    """A try that may be worth another."""

    failure: Failure
    error: CloudSandboxError


class Client:
    """A connection that several Sandboxes can share.

    Making one is optional: ``Sandbox.create`` makes its own. Sharing saves the
    connection's set-up, and in dev mode the token, for each Sandbox.

    Safe for use by several threads. Close it, or use it in a ``with`` block;
    Sandboxes made with it live on.

    Args:
        base_url: address of the server. Default: ``CLOUD_SANDBOX_URL``, then
            ``http://localhost:8080``.
        user_id: in dev mode, whom to be: the client asks the server for tokens.
        api_key: a key or bearer token. Default: ``CLOUD_SANDBOX_API_KEY``,
            unless there is a ``user_id``.
        token: a bearer token; another word for ``api_key``.

    Raises:
        ValueError: an argument, or an environment variable, cannot work.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        user_id: str | None = None,
        api_key: str | None = None,
        token: str | None = None,
    ) -> None:
        self._settings = _settings.resolve(base_url, user_id, api_key, token, os.environ)
        self._mint_lock = threading.Lock()
        self._minted: tuple[str, float] | None = None  # token, monotonic time to replace it
        self._http = httpx.Client(
            base_url=self._settings.base_url,
            headers={"User-Agent": f"cloud-sandbox-python/{__version__}"},
            limits=httpx.Limits(keepalive_expiry=30),
            trust_env=not self._settings.loopback,
            verify=_tls(self._settings),
        )

    @property
    def base_url(self) -> str:
        """Address of the server."""
        return self._settings.base_url

    def close(self) -> None:
        """Close the connections. Sandboxes are not ended by it."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.base_url!r})"

    def call(self, request: Request) -> bytes:
        """Send a request and return the body of its answer; for this package's use."""
        return self._send(request, read=True).content

    @contextmanager
    def stream(self, request: Request) -> Iterator[Iterator[bytes]]:
        """Send a request and give the body of its answer piece by piece."""
        response = self._send(request, read=False)
        try:
            yield self._pieces(response)
        finally:
            response.close()

    def _pieces(self, response: httpx.Response) -> Iterator[bytes]:
        try:
            yield from response.iter_bytes()
        except httpx.TimeoutException as err:
            raise SandboxTimeoutError("the server stopped sending") from err
        except httpx.TransportError as err:
            raise ConnectionFailedError(f"the connection broke: {err}") from err

    def _send(self, request: Request, *, read: bool) -> httpx.Response:
        """Send, retry where that is safe, and return an answer that is no error."""
        retry, lost = 0, False
        while True:
            outcome = self._attempt(request, read=read, lost=lost)
            if isinstance(outcome, httpx.Response):
                return outcome
            retry += 1
            lost = lost or outcome.failure is Failure.LOST
            wait = wait_before(
                retry,
                outcome.failure,
                repeatable=request.repeatable,
                replayable=request.replayable,
                retry_after=outcome.error.retry_after,
                chance=random.random(),  # noqa: S311 - spreads clients, hides nothing
            )
            if wait is None:
                raise outcome.error
            time.sleep(wait)

    def _attempt(self, request: Request, *, read: bool, lost: bool) -> httpx.Response | _Failed:
        """Send once. What no retry can mend is raised.

        Args:
            request: what to send.
            read: read the whole answer.
            lost: an earlier try may have reached the server.
        """
        try:
            response = self._once(request, read=read)
        except (httpx.ConnectError, httpx.ConnectTimeout) as err:
            return self._failed(Failure.NOT_SENT, f"cannot reach {self.base_url}", err)
        except httpx.TimeoutException as err:
            raise SandboxTimeoutError("the server did not answer in time") from err
        except httpx.TransportError as err:
            return self._failed(Failure.LOST, f"the connection to {self.base_url} broke", err)
        # A delete whose answer got lost finds nothing the second time.
        gone = lost and request.method == "DELETE" and response.status_code == 404
        if response.status_code < 300 or gone:
            return response
        error = _wire.decode_error(response.status_code, response.headers, response.content)
        if response.status_code in (429, 503):
            return _Failed(Failure.TURNED_AWAY, error)
        raise error

    @staticmethod
    def _failed(failure: Failure, what: str, cause: httpx.TransportError) -> _Failed:
        error = ConnectionFailedError(f"{what}: {cause}" if str(cause) else what)
        error.__cause__ = cause
        return _Failed(failure, error)

    def _once(self, request: Request, *, read: bool) -> httpx.Response:
        response = self._http.send(
            self._http.build_request(
                request.method,
                request.path,
                params=request.query,
                content=request.content,
                headers={**request.headers, **self._authorization(request)},
                timeout=httpx.Timeout(
                    connect=_CONNECT_SECONDS,
                    read=request.read_seconds,
                    write=_WRITE_SECONDS,
                    # Waiting for a connection of our own is never a reason to fail.
                    pool=None,
                ),
            ),
            stream=True,
        )
        if read or response.status_code >= 300:
            try:
                response.read()
            finally:
                response.close()
        return response

    def _authorization(self, request: Request) -> dict[str, str]:
        if not request.authenticated:
            return {}
        return {"Authorization": f"Bearer {self._settings.bearer or self._minted_token()}"}

    def _minted_token(self) -> str:
        user_id = self._settings.user_id
        if user_id is None:
            raise AuthenticationError(
                "say who you are: pass user_id (dev mode), api_key or token, "
                f"or set {_settings.ENV_KEY}"
            )
        with self._mint_lock:
            if self._minted is None or time.monotonic() >= self._minted[1]:
                asked = time.monotonic()
                token, seconds = _wire.decode_token(self.call(_wire.mint_token(user_id)))
                self._minted = (token, asked + seconds - min(_TOKEN_MARGIN_SECONDS, seconds / 2))
            return self._minted[0]


def _tls(settings: _settings.Settings) -> ssl.SSLContext | bool:
    """Spare plain HTTP the 20 ms of loading certificates that it never uses."""
    if settings.base_url.startswith("https:"):
        return True
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody
