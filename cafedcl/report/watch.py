"""The report as a live web page. The server needs only the standard library."""

import errno
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cafedcl.core.errors import CafedclError

POLICY = 'http-equiv="Content-Security-Policy" content="'
"""The start of the report's Content-Security-Policy, which forbids all requests."""
SCRIPT = """<script>
(() => {
  const version = %s, key = "cafedcl-watch-scroll";
  const before = sessionStorage.getItem(key);
  if (before !== null) {
    sessionStorage.removeItem(key);
    addEventListener("load", () => scrollTo(0, Number(before)));
  }
  const look = async () => {
    try {
      const now = await (await fetch("/version", { cache: "no-store" })).text();
      if (now !== version) {
        sessionStorage.setItem(key, String(scrollY));
        location.reload();
        return;
      }
    } catch {
      // The server is unreachable; try again later.
    }
    setTimeout(look, %d);
  };
  setTimeout(look, %d);
})();
</script>
"""
WAITING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>cafedcl: waiting</title><link rel="icon" href="data:,"></head>
<body style="font: 16px system-ui; margin: 4rem auto; max-width: 40rem">
<h1>Nothing to show yet</h1><p>%s</p></body>
</html>
"""


class Reports:
    """The page of some runs, which is rebuilt when their metrics have changed.

    Changes are looked for at most once in ``every`` seconds, however many browsers are open.
    """

    def __init__(self, runs: Sequence[Path], every: float) -> None:
        for path in runs:
            if not path.is_dir():
                raise CafedclError(
                    f"{path}: there is no such folder; "
                    "give run folders, or folders that contain them"
                )
        self.runs = list(runs)
        self.every = every
        self.lock = threading.Lock()
        self.looked = -every
        self.version = ""
        self.html = ""

    def current(self) -> tuple[str, str]:
        """Return the page's version and the page."""
        # The server answers in threads; only one of them builds the page.
        with self.lock:
            now = time.monotonic()
            if now - self.looked >= self.every or not self.html:
                version = self.stamp()
                if version != self.version or not self.html:
                    self.html = self.with_script(self.build(), version)
                    self.version = version
                # After the build, which can take longer than the pause between two checks.
                self.looked = time.monotonic()
            return self.version, self.html

    def stamp(self) -> str:
        """Return a digest that changes whenever a run has written something new."""
        from cafedcl.report.run_summary import find_folders

        seen = []
        try:
            folders = find_folders(self.runs)
        except CafedclError:
            return "gone"
        for folder in folders:
            with suppress(OSError):
                stat = (folder / "metrics.jsonl").stat()
                seen.append((str(folder), stat.st_size, stat.st_mtime_ns))
        return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]

    def build(self) -> str:
        """Return the report, or a page that explains why there is none yet."""
        from cafedcl.report.collect import collect
        from cafedcl.report.page import page
        from cafedcl.report.runs import read_runs

        try:
            summary = read_runs(self.runs)
            if summary.groups:
                return page(collect(summary))
            reason = "no run has a scored round"
        except CafedclError as error:
            reason = str(error)
        return WAITING % escape(reason)

    def with_script(self, html: str, version: str) -> str:
        """Return the page with a script that reloads it when there is a new version.

        Its policy is relaxed to allow requests to this server, and to no other.
        """
        pause = round(1000 * self.every)
        allowed = html.replace(POLICY, f"{POLICY}connect-src 'self'; ", 1)
        body, end, rest = allowed.rpartition("</body>")
        return body + SCRIPT % (json.dumps(version), pause, pause) + end + rest


class ReportServer:
    """The web server of a page."""

    def __init__(self, reports: Reports, host: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            """Answers with the page or its version."""

            def do_GET(self) -> None:
                """Answer a request."""
                path = self.path.partition("?")[0]
                if path not in ("/", "/version"):
                    self.send_error(404)
                    return
                version, html = reports.current()
                if path == "/":
                    kind = "text/html"
                    content = html.encode()
                else:
                    kind = "text/plain"
                    content = version.encode()
                self.send_response(200)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                with suppress(ConnectionError):
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Print nothing for a request."""

        try:
            self.http = ThreadingHTTPServer((host, port), Handler)
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
        host, port = self.http.server_address[:2]
        return f"http://{host!s}:{port}/"

    def run(self) -> None:
        """Serve until Ctrl-C."""
        with suppress(KeyboardInterrupt):
            self.http.serve_forever(poll_interval=0.1)


@contextmanager
def serve_report(reports: Reports, host: str, port: int) -> Iterator[ReportServer]:
    """Yield a listening server, and close it afterwards."""
    server = ReportServer(reports, host, port)
    try:
        yield server
    finally:
        server.http.server_close()
