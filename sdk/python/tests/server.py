"""A small real HTTP server whose answers a test decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes | Sequence[bytes] = b"{}"  # a sequence is sent in chunks of its own
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False  # break the connection instead of answering
    cut: bool = False  # break it after the chunks, without their end


Answer = Callable[[Received], Reply]


class Server:
    """Answers with what ``answer`` returns and keeps what it received."""

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self.answer = answer
        self.received: list[Received] = []
        self.problems: list[BaseException] = []
        self.connections = 0
        self._http = _Quiet(("127.0.0.1", port), _handler(self))
        self._http.daemon_threads = False
        self._http.block_on_close = False  # keep-alive connections end with their clients
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        if exc is None and self.problems:
            raise self.problems[0]


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that leave early are what some tests are about."""


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def setup(self) -> None:
            server.connections += 1
            super().setup()

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _serve(self) -> None:
            split = urlsplit(self.path)
            received = Received(
                method=self.command,
                path=split.path,
                query=dict(parse_qsl(split.query, keep_blank_values=True)),
                headers={name.lower(): value for name, value in self.headers.items()},
                body=self._body(),
            )
            server.received.append(received)
            try:
                reply = server.answer(received)
            except BaseException as err:  # noqa: BLE001 - the test's thread raises it
                server.problems.append(err)
                reply = Reply(status=500)
            if reply.drop:
                self.close_connection = True
                return
            self._send(reply)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if isinstance(reply.body, bytes):
                body = b"" if reply.status == 204 else reply.body
                if reply.status != 204:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in reply.body:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.flush()
            if reply.cut:
                self.close_connection = True
            else:
                self.wfile.write(b"0\r\n\r\n")

    return Handler
