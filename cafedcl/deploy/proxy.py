"""The proxy in front of a SuperLink: nginx, which lets only the paths of SuperNodes through.

Flower's SuperLink serves three things on one port: what SuperNodes need (``/v1/fleet/``), what
operators need (``/v1/control/``: submit runs, register keys) and what executing processes need
(``/v1/runtime/``). Only the first asks for a key. So the SuperLink listens on the loopback, and
other machines reach only nginx.
"""

import os
import shutil
import socket
from pathlib import Path

from cafedcl.core.errors import CafedclError
from cafedcl.core.files import write_atomically
from cafedcl.deploy.programs import ServerProcess

CONFIG = "nginx.conf"
FOLDER = "proxy"
"""The folder of nginx's own files in the server's folder."""
LARGEST_BODY = "64m"
"""The most bytes of a request. Flower sends large tensors in pieces of 5 MiB."""

TEMPLATE = """\
# Written by cafedcl at every start of `cafedcl deploy server`, from server.toml.
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log proxy.log warn;

events {{
    worker_connections 1024;
}}

http {{
    server_tokens off;
    # nginx creates these folders, but stores nothing: see "buffering" below.
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;

    upstream superlink {{
        server 127.0.0.1:{superlink};
        keepalive 16;
    }}

    server {{
        listen {listen}{ssl};
{certificate}
        client_max_body_size {largest};
        # What a SuperNode never asks for is refused, and written down.
        access_log proxy-refused.log;
        location / {{
            return 404;
        }}

        # The path is matched, and passed on, after nginx has resolved dots and escapes in it.
        location ~ ^/v1/fleet/[a-z-]+$ {{
            access_log off;
            limit_except POST {{
                deny all;
            }}
            proxy_pass {scheme}://superlink$uri;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_connect_timeout 5s;
            proxy_read_timeout 60s;
            proxy_send_timeout 60s;
{verify}        }}
    }}
}}
"""
CERTIFICATE = """\
        ssl_certificate server.crt;
        ssl_certificate_key server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
"""
VERIFY = """\
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate ca.crt;
            proxy_ssl_name localhost;
"""


def write_proxy_config(
    server: Path, listen: str, port: int, superlink: int, insecure: bool
) -> None:
    """Write nginx's config into a server's folder."""
    host = f"[{listen}]" if ":" in listen else listen
    text = TEMPLATE.format(
        folder=FOLDER,
        superlink=superlink,
        listen=f"{host}:{port}",
        ssl="" if insecure else " ssl",
        certificate="" if insecure else CERTIFICATE,
        largest=LARGEST_BODY,
        scheme="http" if insecure else "https",
        verify="" if insecure else VERIFY,
    )
    write_atomically(server / CONFIG, text.encode())


def nginx_program() -> str:
    """Return the path of nginx; raise an error that says what to install if it is missing."""
    # Many distributions install it where only root's PATH looks.
    paths = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which("nginx", path=paths)
    if found is None:
        raise CafedclError(
            "nginx is not installed; the server needs it in front of Flower's SuperLink: "
            "install nginx-light (Debian, Ubuntu) or nginx (other systems)"
        )
    return found


def start_proxy(server: Path, listen: str, port: int) -> ServerProcess:
    """Start nginx for a server's folder and wait until it listens."""
    (server / FOLDER).mkdir(exist_ok=True, mode=0o700)
    words = [nginx_program(), "-p", str(server), "-c", str(server / CONFIG)]
    # Before it has read its config, nginx writes errors to the log named here.
    words += ["-e", str(server / "proxy.log")]
    process = ServerProcess(words, server / "flower", server / "proxy.log")
    host = "127.0.0.1" if listen in ("0.0.0.0", "::") else listen
    try:
        process.wait_until(lambda: is_listening(host, port), f"nginx at {listen}:{port}")
    except BaseException:
        process.stop()
        raise
    return process


def is_listening(host: str, port: int) -> bool:
    """Return whether a program listens on a port."""
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True
