"""nginx in front of a server: only what SuperNodes ask for comes through, of any size."""

import http.client
import http.server
import ssl
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("flwr")

from cafedcl.core.errors import CafedclError
from cafedcl.deploy import proxy
from cafedcl.deploy.keys import make_certificates
from cafedcl.deploy.superlink import free_port


class Upstream(http.server.BaseHTTPRequestHandler):
    """Plays a SuperLink: answers with the number of bytes that it got, and remembers the path."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        size = len(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(self.path)
        answer = str(size).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_):
        pass


@contextmanager
def proxied(folder, insecure):
    """Start an upstream and nginx; yields the paths that arrive and a function that asks nginx."""
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    upstream.seen = []
    context = None
    if not insecure:
        ca = make_certificates("127.0.0.1", folder)
        (folder / "ca.crt").write_bytes(ca)
        inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        inside.load_cert_chain(folder / "server.crt", folder / "server.key")
        upstream.socket = inside.wrap_socket(upstream.socket, server_side=True)
        context = ssl.create_default_context(cadata=ca.decode())
    thread = threading.Thread(target=upstream.serve_forever)
    thread.start()
    port = free_port()
    proxy.write_proxy_config(folder, "127.0.0.1", port, upstream.server_port, insecure)
    process = proxy.start_proxy(folder, "127.0.0.1", port)

    def ask(path, body=b"", method="POST"):
        if insecure:
            line = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        else:
            line = http.client.HTTPSConnection("127.0.0.1", port, timeout=600, context=context)
        line.request(method, path, body)
        answer = line.getresponse()
        said = answer.read()
        line.close()
        return answer.status, said

    try:
        yield upstream.seen, ask
    finally:
        process.stop()
        upstream.shutdown()
        thread.join()
        upstream.server_close()


@pytest.mark.usefixtures("nginx")
@pytest.mark.parametrize("insecure", [False, True])
def test_requests_of_supernodes_come_through_and_are_not_stored(insecure, tmp_path):
    with proxied(tmp_path, insecure) as (seen, ask):
        assert ask("/v1/fleet/pull-messages", b"123") == (200, b"3")
        # Much more than nginx's default of 1 MB, and than Flower's pieces of 5 MiB.
        assert ask("/v1/fleet/push-object", bytes(40_000_000)) == (200, b"40000000")
        assert seen == ["/v1/fleet/pull-messages", "/v1/fleet/push-object"]
        assert not [path for path in (tmp_path / "proxy").rglob("*") if path.is_file()][1:]


@pytest.mark.usefixtures("nginx")
def test_nothing_else_comes_through_and_it_is_written_down(tmp_path):
    refused = [
        "/",
        "/health",
        "/docs",
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/v1/fleet/",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet/%252e%252e/control/start-run",
        "/v1/fleet//../control/start-run",
        "//v1/control/start-run",
        "/V1/CONTROL/start-run",
    ]
    with proxied(tmp_path, insecure=False) as (seen, ask):
        assert {path: ask(path)[0] for path in refused} == dict.fromkeys(refused, 404)
        assert ask("/v1/fleet/pull-messages", method="GET")[0] == 403
        assert ask("/v1/fleet/push-object", bytes(70_000_000))[0] == 413
        assert seen == []
        # A path that only looks foreign arrives as what it is.
        assert ask("/v1/control/../fleet/pull-messages?x=/v1/control/")[0] == 200
        assert seen == ["/v1/fleet/pull-messages"]
    assert "/v1/control/register-node" in (tmp_path / "proxy-refused.log").read_text()


def test_without_nginx_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(proxy.shutil, "which", lambda *_, **__: None)
    with pytest.raises(CafedclError, match=r"nginx is not installed.*install nginx-light") as found:
        proxy.nginx_program()
    assert "\n" not in str(found.value)
