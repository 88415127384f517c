import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.report.server import HEADERS, ReportServer


@pytest.fixture(scope="module")
def server() -> Iterator[ReportServer]:
    served = ReportServer(lambda: ("7", "<p>secret</p>"), "127.0.0.1", 0)
    thread = threading.Thread(target=served.run)
    thread.start()
    yield served
    served.http.shutdown()
    thread.join()
    served.http.server_close()


def ask(
    server: ReportServer, hosts: list[str], verb: str = "GET", path: str = "/"
) -> tuple[int, str, http.client.HTTPMessage]:
    port = server.http.server_port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.putrequest(verb, path, skip_host=True)
    for host in hosts:
        connection.putheader("Host", host.replace("PORT", str(port)))
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


@pytest.mark.parametrize(
    "host", ["127.0.0.1:PORT", "localhost:PORT", "LocalHost:PORT", "[::1]:PORT"]
)
def test_it_answers_to_its_own_names(server: ReportServer, host: str) -> None:
    assert ask(server, [host])[:2] == (200, "<p>secret</p>")
    assert ask(server, [host], path="/version?x=1")[:2] == (200, "7")


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example:PORT"],
        ["evil.example"],
        ["localhost"],
        ["localhost:1"],
        ["localhost.evil.example:PORT"],
        ["127.0.0.1.nip.io:PORT"],
        ["127.0.0.1:PORT@evil.example"],
        ["169.254.169.254:PORT"],
        [""],
        [],
        ["localhost:PORT", "evil.example:PORT"],
    ],
)
def test_a_name_that_is_not_its_own_learns_nothing(server: ReportServer, hosts: list[str]) -> None:
    for path in ("/", "/version"):
        status, text, _ = ask(server, hosts, path=path)
        assert status == 421
        assert "secret" not in text
        assert text.count("\n") == 1
        assert server.address in text


def test_a_server_for_all_addresses_answers_to_the_one_that_was_reached() -> None:
    served = ReportServer(lambda: ("7", ""), "0.0.0.0", 0)
    try:
        names = served.http.names("192.0.2.7")
        port = served.http.server_port
        assert {
            f"192.0.2.7:{port}",
            f"0.0.0.0:{port}",
            f"{socket.gethostname().lower()}:{port}",
        } <= names
        assert f"192.0.2.8:{port}" not in names
    finally:
        served.http.server_close()


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_only_get_and_head_are_answered(server: ReportServer, verb: str) -> None:
    status, text, headers = ask(server, ["localhost:PORT"], verb)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert "secret" not in text


def test_head_has_the_headers_of_get(server: ReportServer) -> None:
    status, text, headers = ask(server, ["localhost:PORT"], "HEAD")
    assert (status, text, headers["Content-Length"]) == (200, "", str(len("<p>secret</p>")))


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/../../etc/passwd", "/%2e%2e/", "/.", "/version/", "/metrics"]
)
def test_there_is_nothing_but_the_page(server: ReportServer, path: str) -> None:
    status, text, _ = ask(server, ["localhost:PORT"], path=path)
    assert status == 404
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "path"), [("localhost:PORT", "/"), ("localhost:PORT", "/x"), ("evil.example", "/")]
)
def test_every_answer_has_the_protecting_headers(
    server: ReportServer, host: str, path: str
) -> None:
    _, _, headers = ask(server, [host], path=path)
    assert HEADERS.items() <= dict(headers.items()).items()
    assert "Python" not in headers["Server"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_an_ipv6_address_is_written_in_brackets() -> None:
    try:
        served = ReportServer(lambda: ("7", ""), "::1", 0)
    except CafedclError:
        pytest.skip("this machine has no IPv6")
    try:
        assert served.address == f"http://[::1]:{served.http.server_port}/"
    finally:
        served.http.server_close()
