"""A server that is asked straight, and one behind a web proxy that passes connections on."""

import socket
import threading

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.deploy.reach import unreachable, web_proxy

VARIABLES = ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def proxy(environment):
    """A web proxy that answers one request, and what it was asked."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer(status):
            def serve():
                connection, _ = listening.accept()
                with connection:
                    heard.append(connection.recv(4096).decode())
                    connection.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())

            thread = threading.Thread(target=serve)
            thread.start()
            threads.append(thread)
            port = listening.getsockname()[1]
            environment.setenv("HTTPS_PROXY", f"http://ward%20:pass@127.0.0.1:{port}")
            return port

        threads = []
        yield answer, heard
        for thread in threads:
            thread.join()


def test_who_listens_can_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert unreachable("127.0.0.1", port) == ""
    assert unreachable("127.0.0.1", port) == "Connection refused"


def test_a_server_is_asked_through_the_web_proxy_with_its_password(proxy):
    answer, heard = proxy
    answer("200 Connection established")
    assert unreachable("fl.example.org", 8000) == ""
    assert heard[0].startswith("CONNECT fl.example.org:8000 HTTP/1.")
    assert "Proxy-Authorization: Basic d2FyZCA6cGFzcw==\r\n" in heard[0]


def test_a_proxy_that_refuses_is_named_without_its_password(proxy):
    answer, _ = proxy
    port = answer("403 Forbidden")
    expected = f"through the web proxy 127.0.0.1:{port}: Tunnel connection failed: 403 Forbidden"
    assert unreachable("fl.example.org", 8000) == expected


def test_a_proxy_that_is_down_is_named(environment):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    environment.setenv("HTTPS_PROXY", f"127.0.0.1:{port}")
    expected = f"through the web proxy 127.0.0.1:{port}: Connection refused"
    assert unreachable("fl.example.org", 8000) == expected


@pytest.mark.parametrize("scheme", ["socks5", "https"])
def test_only_http_proxies_can_be_asked(environment, scheme):
    environment.setenv("HTTPS_PROXY", f"{scheme}://127.0.0.1:1080")
    assert unreachable("fl.example.org", 8000) is None


def test_hosts_that_are_asked_straight(environment):
    environment.setenv("HTTPS_PROXY", "http://proxy:3128")
    environment.setenv("NO_PROXY", "fl.ward")
    assert web_proxy("fl.example.org").port == 3128
    assert web_proxy("fl.ward") is None
    assert web_proxy("127.0.0.1") is None, "as for the programs that a site starts"


@pytest.mark.parametrize(
    "address", ["http://proxy:many", "http://proxy:99999", "http://", "http://[proxy", ":3128"]
)
def test_what_is_no_address_of_a_proxy_is_refused_without_its_password(environment, address):
    environment.setenv("HTTPS_PROXY", address.replace("http://", "http://ward:pass@"))
    with pytest.raises(CafedclError, match=r"^HTTPS_PROXY: an address of a web proxy is expected"):
        unreachable("fl.example.org", 8000)
