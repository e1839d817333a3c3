# Generated from _async by scripts/generate_sync.py: edit it there.
"""The connection to a server."""

from __future__ import annotations

import dataclasses
import os
import random
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from types import TracebackType
from typing import TypeVar

import httpx

from cloud_sandbox import _settings
from cloud_sandbox._api import failures, files, service, tokens
from cloud_sandbox._api.call import Answer, Call, nothing
from cloud_sandbox._retry import MAX_RETRIES, Failure, wait_before
from cloud_sandbox._version import __version__
from cloud_sandbox.errors import (
    AuthenticationError,
    CloudSandboxError,
    ConnectionFailedError,
    ProtocolError,
    SandboxTimeoutError,
)
from cloud_sandbox.models import Stats, Usage

from . import _io
from .audit import Audit
from .keys import Keys
from .secrets import Secrets
from .snapshots import Snapshots
from .sockets import ACCEPT, Socket, handshake
from .streams import ByteStream
from .templates import Templates
from .users import Users
from .volumes import Volumes

__all__ = ["Client", "client_for"]

T = TypeVar("T")

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

    Making one is optional: ``Sandbox.create`` makes its own. Sharing saves
    the connection's set-up, and in dev mode the token, for each Sandbox.

    Safe for use by several threads. Close it, or use
    it in a ``with`` block; Sandboxes made with it live on.

    Args:
        base_url: address of the server. Default: ``CLOUD_SANDBOX_URL``, then
            ``http://localhost:8080``.
        user_id: in dev mode, whom to be: the client asks the server for tokens.
            Without a key, and a server on this machine, ``CLOUD_SANDBOX_USER_ID``,
            or "test" as in the command line.
        api_key: a key or bearer token. Default: ``CLOUD_SANDBOX_API_KEY``,
            unless there is a ``user_id``.
        token: a bearer token; another word for ``api_key``.
        max_retries: how often a call is tried again where that is safe; 0 is
            never. Default: 3.

    Attributes:
        audit: who did what in your tenant, for its admins.
        keys: your API keys.
        secrets: values that nobody can read again.
        snapshots: what your Sandboxes were saved in.
        templates: what Sandboxes can start from.
        users: who acts for your tenant, for its admins.
        volumes: files that outlive Sandboxes.

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
        max_retries: int = MAX_RETRIES,
    ) -> None:
        if max_retries < 0:
            raise ValueError("max_retries must be 0 or more")
        self._settings = _settings.resolve(base_url, user_id, api_key, token, os.environ)
        self._max_retries = max_retries
        self._owners = 1
        self.audit = Audit(self)
        self.keys = Keys(self)
        self.secrets = Secrets(self)
        self.snapshots = Snapshots(self)
        self.templates = Templates(self)
        self.users = Users(self)
        self.volumes = Volumes(self)
        self._mint_lock = _io.Lock()
        self._minted: tuple[str, float] | None = None  # token, monotonic time to replace it
        self._http = _io.HTTP(
            base_url=self._settings.base_url,
            headers={"User-Agent": f"cloud-sandbox-python/{__version__}"},
            # As many calls as the caller makes at once; a few stay warm.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=50, keepalive_expiry=30
            ),
            trust_env=not self._settings.loopback,
            verify=_tls(self._settings),
        )

    @property
    def retries(self) -> bool:
        """Whether calls are tried again; for this package's use."""
        return self._max_retries > 0

    @property
    def base_url(self) -> str:
        """Address of the server."""
        return self._settings.base_url

    def stats(self) -> Stats:
        """Count your Sandboxes by state, and tell of the server's Pools and Nodes."""
        return self.call(service.stats())

    def usage(
        self,
        first: date | None = None,
        end: date | None = None,
        *,
        group_by: Sequence[str] = (),
        sandbox_id: str | None = None,
    ) -> list[Usage]:
        """Return what your Sandboxes used, by day of UTC, and what it costs.

        What runs is counted every minute, and when it pauses or ends.

        Args:
            first: the first day. Default: that of this month.
            end: the day after the last. Default: tomorrow.
            group_by: what to tell apart: ``"day"``, ``"sandbox"`` or both.
                Default: nothing, so there is one row, or none.
            sandbox_id: only this Sandbox.

        Raises:
            InvalidRequestError: a value breaks a rule.
        """
        found: list[Usage] = []
        cursor = ""
        while True:
            page, cursor = self.call(
                service.usage(first, end, group_by, sandbox_id, cursor or None)
            )
            found.extend(page)
            if not cursor:
                return found

    def rotate_signing_key(self) -> None:
        """Refuse all URLs that ``files.sign`` made until now, in all your Sandboxes."""
        self.call(files.rotate_signing_key())

    def close(self) -> None:
        """Close the connections. Sandboxes are not ended by it."""
        self._http.close()

    def own(self) -> None:
        """Have one more owner; for this package's use."""
        self._owners += 1

    def disown(self) -> None:
        """Have one owner less, and close without any; for this package's use."""
        self._owners -= 1
        if self._owners == 0:
            self.close()

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

    def call(self, call: Call[T]) -> T:
        """Send a request and return what its answer says; for this package's use."""
        response = self._send(call, read=True)
        return call.decode(Answer(response.status_code, response.headers, response.content))

    def open(self, call: Call[object]) -> ByteStream:
        """Send a request and return its answer to be read; for this package's use."""
        return ByteStream(self._send(call, read=False))

    def connect(self, call: Call[T]) -> Socket:
        """Open a WebSocket; for this package's use."""
        headers, accepts = handshake()
        call = dataclasses.replace(call, headers={**call.headers, **headers})
        response = self._send(call, read=False)
        if response.status_code == 101 and response.headers.get(ACCEPT) == accepts:
            return Socket(response)
        response.close()
        raise ProtocolError("the server did not open a WebSocket")

    def _send(self, call: Call[T], *, read: bool) -> httpx.Response:
        """Send, retry where that is safe, and return an answer that is no error."""
        retry, lost, waited = 0, False, 0.0
        give_up = time.monotonic() + call.read_seconds
        while True:
            outcome = self._attempt(call, read=read, lost=lost)
            if isinstance(outcome, httpx.Response):
                return outcome
            # What an earlier try began is waited for as long as for an answer, and a
            # server that says when to come back as long as it may ask for.
            patient = {
                Failure.UNDER_WAY: time.monotonic() < give_up,
                Failure.TURNED_AWAY: (outcome.error.retry_after or 0.0) >= 1.0,
            }.get(outcome.failure, False)
            if not patient or self._max_retries == 0:
                retry += 1
            lost = lost or outcome.failure is Failure.LOST
            wait = wait_before(
                retry,
                outcome.failure,
                repeatable=call.repeatable,
                replayable=call.replayable,
                retry_after=outcome.error.retry_after,
                chance=random.random(),  # noqa: S311 - spreads clients, hides nothing
                waited=waited,
                max_retries=self._max_retries,
            )
            if wait is None:
                if isinstance(outcome.error, ConnectionFailedError):
                    outcome.error.sent = lost
                raise outcome.error
            if outcome.failure is Failure.TURNED_AWAY:
                waited += wait
            _io.sleep(wait)

    def _attempt(self, call: Call[T], *, read: bool, lost: bool) -> httpx.Response | _Failed:
        """Send once. What no retry can mend is raised.

        Args:
            call: what to send.
            read: read the whole answer.
            lost: an earlier try may have reached the server.
        """
        try:
            response = self._once(call, read=read)
        except (httpx.ConnectError, httpx.ConnectTimeout) as err:
            return _failed(Failure.NOT_SENT, f"cannot reach {self.base_url}", err)
        except httpx.TimeoutException as err:
            raise SandboxTimeoutError("the server did not answer in time") from err
        except httpx.TransportError as err:
            return _failed(Failure.LOST, f"the connection to {self.base_url} broke", err)
        # A delete whose answer got lost finds nothing the second time.
        gone = lost and call.method == "DELETE" and call.decode is nothing
        if response.status_code < 300 or (gone and response.status_code == 404):
            return response
        error = failures.of_answer(response.status_code, response.headers, response.content)
        if failure := _failure_of(response.status_code, error, keyed=call.keyed):
            return _Failed(failure, error)
        raise error

    def _once(self, call: Call[T], *, read: bool) -> httpx.Response:
        response = self._http.send(
            self._http.build_request(
                call.method,
                call.path,
                params=call.query,
                content=_io.body(call.content),
                headers={**call.headers, **self._authorization(call)},
                timeout=httpx.Timeout(
                    connect=_CONNECT_SECONDS,
                    read=call.read_seconds,
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

    def _authorization(self, call: Call[T]) -> dict[str, str]:
        if not call.authenticated:
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
                token, seconds = self.call(tokens.mint(user_id))
                self._minted = (token, asked + seconds - min(_TOKEN_MARGIN_SECONDS, seconds / 2))
            return self._minted[0]


def _failed(failure: Failure, what: str, cause: httpx.TransportError) -> _Failed:
    error = ConnectionFailedError(f"{what}: {cause}" if str(cause) else what)
    error.__cause__ = cause
    return _Failed(failure, error)


def _failure_of(status_code: int, error: CloudSandboxError, *, keyed: bool) -> Failure | None:
    """Return how a try failed, if another may go better."""
    if status_code == 503 or (status_code == 429 and error.retry_after is not None):
        return Failure.TURNED_AWAY  # without advice, 429 is a quota that does not pass
    if status_code == 502:  # a proxy that lost its server, which may have acted
        return Failure.LOST
    if status_code == 409 and keyed and error.retry_after is not None:
        return Failure.UNDER_WAY
    return None


def _tls(settings: _settings.Settings) -> ssl.SSLContext | bool:
    """Spare plain HTTP the 20 ms of loading certificates that it never uses."""
    if settings.base_url.startswith("https:"):
        return True
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody


def client_for(
    client: Client | None,
    base_url: str | None,
    user_id: str | None,
    api_key: str | None,
    token: str | None,
) -> tuple[Client, bool]:
    """Return the connection to use, and whether it was made here."""
    if client is not None:
        if any(value is not None for value in (base_url, user_id, api_key, token)):
            raise ValueError("pass client, or base_url, user_id, api_key and token, not both")
        return client, False
    return Client(base_url, user_id=user_id, api_key=api_key, token=token), True
