"""Serve the page and answer what it asks, to this computer alone unless you ask for more."""

import json
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from socket import gethostname
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

import metastep
from metastep.errors import MetastepError, first_line
from metastep.play import questions
from metastep.play.questions import LARGEST
from metastep.play.session import Session

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/pad.js": ("pad.js", "text/javascript; charset=utf-8"),
}
JSON = "application/json"
PATIENCE = 30  # seconds for a request to arrive
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ASKED: dict[str, Callable[[Session, bytes], Any]] = {  # what is posted, and to where
    "/api/strokes": questions.strokes,
    "/api/picture": questions.picture,
    "/api/answer": questions.answer,
}


class RequestError(MetastepError):
    """A request that is not answered, with the status that says so."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server(ThreadingHTTPServer):
    """Listen at an address for the page of one session."""

    daemon_threads = True  # Ctrl-C does not wait for a browser that keeps its connection

    def __init__(self, session: Session, host: str, port: int) -> None:
        self.session = session
        self.names = {"localhost", host.lower()} | (set() if is_local(host) else {gethostname().lower()})
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise MetastepError(
                f"--host {host} --port {port}: cannot listen there ({error.strerror or error}). "
                "Choose another port, or 0 for any that is free."
            ) from None

    def server_bind(self) -> None:
        """Bind without asking for this computer's full name, which may wait for a network."""
        TCPServer.server_bind(self)

    @property
    def url(self) -> str:
        """Return the address of the page."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def is_own(self, host: str) -> bool:
        """Return whether a Host header names this server.

        A foreign site that resolves to this computer (DNS rebinding) sends its own name, never a number.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.names or is_number(name)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet when a browser hangs up."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answer one request."""

    protocol_version = "HTTP/1.1"
    server_version = f"metastep/{metastep.__version__}"
    sys_version = ""
    timeout = PATIENCE
    server: Server

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, work: Callable[[], tuple[bytes, str]]) -> None:
        try:
            self._require_own()
            self._send(HTTPStatus.OK, *work())
        except RequestError as error:
            self._say(error.status, str(error))
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            self._say(HTTPStatus.BAD_REQUEST, f"{where or 'the request'}: {error.errors()[0]['msg']}.")
        except MetastepError as error:
            self._say(HTTPStatus.BAD_REQUEST, str(error))

    def _say(self, status: HTTPStatus, message: str) -> None:
        self.close_connection = True  # what was sent may not have been read
        self._send(status, json.dumps({"error": message}).encode(), JSON)

    def _require_own(self) -> None:
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if not self.server.is_own(host):
            raise RequestError(HTTPStatus.FORBIDDEN, f"this server is not {host or 'nameless'}. Open {self.server.url}")
        if origin is not None and urlsplit(origin).netloc != host:
            raise RequestError(HTTPStatus.FORBIDDEN, f"pages of {origin} may not ask this server.")

    def _get(self) -> tuple[bytes, str]:
        if self.path == "/api/about":
            return json.dumps(questions.about(self.server.session)).encode(), JSON
        if self.path not in FILES:
            raise RequestError(HTTPStatus.NOT_FOUND, f"there is no {first_line(ValueError(self.path))}. Open /")
        name, kind = FILES[self.path]
        return (PAGE / name).read_bytes(), kind

    def _post(self) -> tuple[bytes, str]:
        if self.path not in ASKED:
            raise RequestError(HTTPStatus.NOT_FOUND, "nothing is posted here. Open /")
        return json.dumps(ASKED[self.path](self.server.session, self._body())).encode(), JSON

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RequestError(HTTPStatus.LENGTH_REQUIRED, "the request does not say how long it is.")
        if int(length) > LARGEST:
            reason = f"this is larger than {LARGEST // 2**20} MiB. Save a smaller copy, and choose that."
            raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        return self.rfile.read(int(length))

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing for a request."""


def is_number(name: str) -> bool:
    """Return whether a host is given as an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_local(host: str) -> bool:
    """Return whether only programs on this computer can reach a host."""
    return host.lower() == "localhost" or (is_number(host) and ip_address(host).is_loopback)
