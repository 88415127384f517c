"""A site's worker process: it holds PyTorch, the data and the model, and answers over a socket."""

import os
import socket
import sys
from pathlib import Path

from cafedcl.core.printable import printable
from cafedcl.deploy.flower.link import receive, send
from cafedcl.deploy.flower.site import Site
from cafedcl.deploy.folders import SiteOptions, read_site

PARENT_CHECK = 1.0
"""Seconds between two checks of whether the parent process still runs."""


def site_of(folder: Path, options: SiteOptions) -> tuple[Site, int | None]:
    """Return a folder's site, and its client number if it holds a simulated shard."""
    site = Site(folder, options.name, options.data, options.device, options.plugins)
    client = None if options.data else options.client
    return site, client


def answer_requests(path: Path, site: Site, client: int | None) -> None:
    """Answer one request after another until the parent process ends."""
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as listener:
        # Only this user may open the socket.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen()
        listener.settimeout(PARENT_CHECK)
        # A process whose parent has ended gets another parent.
        while os.getppid() == parent:
            try:
                line, _ = listener.accept()
            except TimeoutError:
                continue
            with line:
                line.settimeout(None)
                try:
                    send(line, site.answer(receive(line), client))
                except (OSError, ValueError) as error:
                    warning = f"warning: a request was interrupted: {error}"
                    print(printable(warning), file=sys.stderr, flush=True)


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    answer_requests(Path(sys.argv[1]), *site_of(folder, read_site(folder)))
