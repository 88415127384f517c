"""Whether a site can reach its server, directly or through the web proxy of its network."""

import base64
from http.client import HTTPConnection, HTTPException
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from cafedcl.core.errors import CafedclError
from cafedcl.deploy.programs import LOCAL

TIMEOUT = 3.0
"""Seconds that an answer may take."""


def unreachable(host: str, port: int) -> str | None:
    """Return why there is no answer at an address, through a web proxy if one is set; empty if
    there is one, and None if only Flower can tell.
    """
    proxy = web_proxy(host)
    connection = HTTPConnection(host, port, timeout=TIMEOUT)
    if proxy is not None:
        if proxy.scheme != "http":
            return None
        connection = HTTPConnection(proxy.hostname or "", proxy.port or 80, timeout=TIMEOUT)
        connection.set_tunnel(host, port, _authorization(proxy))
    try:
        connection.connect()
    except (OSError, HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        # Without the password that may be in the proxy's address.
        through = f"through the web proxy {proxy.hostname}:{connection.port}: " if proxy else ""
        return f"{through}{reason}"
    finally:
        connection.close()
    return ""


def web_proxy(host: str) -> SplitResult | None:
    """Return the web proxy through which Flower asks a host, by HTTPS_PROXY and NO_PROXY."""
    found = getproxies().get("https", "")
    if not found or host in LOCAL or proxy_bypass(host):
        return None
    try:
        proxy = urlsplit(found if "://" in found else f"http://{found}")
        if proxy.hostname and proxy.port != 0:
            return proxy
    except ValueError:
        pass  # its port is not a number, or a bracket is missing
    raise CafedclError(
        "HTTPS_PROXY: an address of a web proxy is expected, such as http://proxy.example.org:3128"
    )


def _authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(words.encode()).decode()}"}
