"""A small web server for one page. It needs only the standard library.

Any web page that is open in a browser can make the browser send requests to this server. The server
therefore answers only to its own names: a page from elsewhere whose name was redirected to this
machine (DNS rebinding) is refused, and cannot read the report.
"""

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cafedcl.core.errors import CafedclError

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer: the page may contact only this server, and no page may embed it."""
USUAL_PORT = 80
IDLE = 30
"""Seconds after which a connection that sends nothing is closed."""

Page = Callable[[], tuple[str, str]]
"""Returns the version of the page, and the page."""


class PageHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD with the page or its version, and refuses everything else."""

    server: "PageServer"
    server_version = "cafedcl"
    sys_version = ""
    timeout = IDLE

    def do_GET(self) -> None:
        """Answer a request."""
        if not self.is_for_us():
            self.send_error(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"open {self.server.address} by one of its own names",
            )
            return
        path = self.path.partition("?")[0]
        if path not in ("/", "/version"):
            self.send_error(HTTPStatus.NOT_FOUND, "there is only / here")
            return
        version, html = self.server.page()
        if path == "/":
            self.answer(HTTPStatus.OK, "text/html", html)
        else:
            self.answer(HTTPStatus.OK, "text/plain", version)

    def do_HEAD(self) -> None:
        """Answer with the headers of a GET."""
        self.do_GET()

    def is_for_us(self) -> bool:
        """Return whether the request names this server, with its port."""
        named = self.headers.get_all("Host", [])
        if len(named) != 1:
            return False
        # The address that the client has connected to, if the server listens on all addresses. A
        # socket for both versions of IP writes IPv4 addresses with this prefix.
        reached = str(self.connection.getsockname()[0]).removeprefix("::ffff:")
        return named[0].strip().lower() in self.server.names(reached)

    def answer(self, status: int, kind: str, text: str) -> None:
        """Send an answer; for HEAD only its headers."""
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):
                self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse a request in one line of plain text."""
        # The base class sends this code if there is no method for the verb.
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code = HTTPStatus.METHOD_NOT_ALLOWED
            message = "only GET and HEAD are answered"
        self.close_connection = True
        status = HTTPStatus(code)
        self.answer(status, "text/plain", f"{status.value} {status.phrase}: {message or ''}\n")

    def log_message(self, *_: object) -> None:
        """Print nothing for a request."""


class PageServer(ThreadingHTTPServer):
    """Listens on one address, and knows by which names a browser may ask for it."""

    def __init__(self, page: Page, host: str, port: int) -> None:
        self.page = page
        self.host = host
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), PageHandler)

    @property
    def address(self) -> str:
        """The address for a browser."""
        return f"http://{in_url(str(self.server_address[0]))}:{self.server_port}/"

    def names(self, reached: str) -> set[str]:
        """Return what a request may name as its host; ``reached`` is the address it arrived at."""
        hosts = {"localhost", "127.0.0.1", "[::1]", in_url(self.host).lower(), in_url(reached)}
        hosts.add(socket.gethostname().lower())
        named = {f"{host}:{self.server_port}" for host in hosts}
        # A browser leaves out the port if it is the usual one.
        return named | hosts if self.server_port == USUAL_PORT else named


class ReportServer:
    """The web server of a page."""

    def __init__(self, page: Page, host: str, port: int) -> None:
        try:
            self.http = PageServer(page, host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CafedclError(
                    f"--port {port}: in use; choose another one, or --port 0 for a free one"
                ) from None
            raise CafedclError(
                f"--host {host} --port {port}: cannot be used: {error.strerror or error}"
            ) from None

    @property
    def address(self) -> str:
        """The address for a browser."""
        return self.http.address

    def run(self) -> None:
        """Serve until Ctrl-C."""
        with suppress(KeyboardInterrupt):
            self.http.serve_forever(poll_interval=0.1)


def in_url(host: str) -> str:
    """Return a host as it is written in an address: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
