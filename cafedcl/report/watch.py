"""The report as a live web page, which is rebuilt as rounds come in."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path

from cafedcl.core.errors import CafedclError
from cafedcl.report.server import ReportServer

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

    It checks for changes at most once in ``every`` seconds, however many browsers are open.
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
            summary.require_scores()
        except CafedclError as error:
            return WAITING % escape(str(error))
        return page(collect(summary))

    def with_script(self, html: str, version: str) -> str:
        """Return the page with a script that reloads it when there is a new version.

        Its policy is relaxed to allow requests only to this server.
        """
        pause = round(1000 * self.every)
        allowed = html.replace(POLICY, f"{POLICY}connect-src 'self'; ", 1)
        body, end, rest = allowed.rpartition("</body>")
        return body + SCRIPT % (json.dumps(version), pause, pause) + end + rest


@contextmanager
def serve_report(reports: Reports, host: str, port: int) -> Iterator[ReportServer]:
    """Yield a listening server, and close it afterwards."""
    server = ReportServer(reports.current, host, port)
    try:
        yield server
    finally:
        server.http.server_close()
