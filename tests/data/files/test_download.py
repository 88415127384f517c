import hashlib
import http.server
import re
import socket
import threading

import numpy as np
import pytest

import cafedcl.data
from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.files.download import Remote, fetch
from cafedcl.data.sources.base import Source
from cafedcl.data.sources.idx import FILES

CONTENT = np.random.default_rng(0).integers(0, 256, 3_000_000, dtype=np.uint8).tobytes()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server:
    """Serves ``files`` on a free port of this machine; breaks off after ``cuts`` bytes, one per
    request.
    """

    def __init__(self):
        self.files = {"file.bin": CONTENT}
        self.cuts = []
        self.requests = []
        self.ranges = True
        self.status = 200
        self.announce = True
        serve = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                serve.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, handler):
        data = self.files.get(handler.path.split("?")[0].lstrip("/"))
        wanted = handler.headers.get("Range")
        self.requests.append(wanted)
        if data is None or self.status != 200:
            handler.send_error(404 if data is None else self.status)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.ranges else 0
        if start >= len(data) and start:
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if self.announce:
            handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        handler.wfile.write(data[start:][: self.cuts.pop(0) if self.cuts else None])

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server():
    serving = Server()
    yield serving
    serving.stop()


@pytest.fixture
def remote(server):
    return Remote(f"{server.address}/file.bin?download=1", MD5)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_checked_and_not_fetched_again(server, remote, data_dir):
    for _ in range(2):
        assert fetch(remote, data_dir / "new").read_bytes() == CONTENT
    assert names(data_dir / "new") == ["file.bin"]
    assert server.requests == [None]


def test_a_length_need_not_be_announced(server, remote, data_dir):
    server.announce = False
    assert fetch(remote, data_dir).read_bytes() == CONTENT


def test_what_is_there_of_it_is_not_fetched_again(server, remote, data_dir):
    (data_dir / "file.bin.part").write_bytes(CONTENT[:1_000_000])
    assert fetch(remote, data_dir).read_bytes() == CONTENT
    assert server.requests == ["bytes=1000000-"]


def test_a_whole_part_is_only_checked(server, remote, data_dir):
    (data_dir / "file.bin.part").write_bytes(CONTENT)
    assert fetch(remote, data_dir).read_bytes() == CONTENT
    assert server.requests == [f"bytes={len(CONTENT)}-"]


def test_a_server_without_ranges_sends_everything_again(server, remote, data_dir):
    server.ranges = False
    (data_dir / "file.bin.part").write_bytes(CONTENT[:1_000_000])
    assert fetch(remote, data_dir).read_bytes() == CONTENT


@pytest.mark.parametrize("rest", [b"older file", CONTENT + b"longer"])
def test_a_part_of_something_else_is_started_afresh(rest, server, remote, data_dir):
    (data_dir / "file.bin.part").write_bytes(rest)
    assert fetch(remote, data_dir).read_bytes() == CONTENT
    assert server.requests[-1] is None


def test_a_server_that_breaks_off_is_asked_for_the_rest(server, remote, data_dir):
    server.cuts = [1_200_000, 700_000]
    assert fetch(remote, data_dir).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=1200000-", "bytes=1900000-"]


def test_one_that_breaks_off_for_good_leaves_the_part_for_the_next_run(server, remote, data_dir):
    server.cuts = [1_200_000, 0]
    with pytest.raises(
        CafedclError,
        match=r"file.bin.*broke off \(1200000 of 3000000 bytes\); run again to resume it",
    ):
        fetch(remote, data_dir)
    assert names(data_dir) == ["file.bin.part"]
    assert fetch(remote, data_dir).read_bytes() == CONTENT
    assert server.requests[-1] == "bytes=1200000-"


def test_a_wrong_checksum_leaves_nothing(server, remote, data_dir):
    server.files["file.bin"] = b"something else"
    with pytest.raises(
        CafedclError, match=f"MD5 is [0-9a-f]{{32}}, not {MD5} as published; it was deleted"
    ):
        fetch(remote, data_dir)
    assert names(data_dir) == []


def test_an_error_of_the_server_and_no_server_at_all_are_one_line(server, remote, data_dir):
    server.status = 503
    with pytest.raises(CafedclError, match="cannot be fetched: HTTP 503"):
        fetch(remote, data_dir)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(CafedclError, match="cannot be fetched: Connection refused"):
        fetch(Remote(f"http://127.0.0.1:{port}/file.bin", MD5), data_dir)
    assert names(data_dir) == []


def test_a_folder_that_cannot_be_made_is_named(remote, data_dir):
    (data_dir / "file").write_text("x")
    with pytest.raises(
        CafedclError, match=r"file/below: cannot be written: Not a directory; set data.dir"
    ):
        fetch(remote, data_dir / "file" / "below")


@pytest.fixture
def mnist(server, monkeypatch, write_idx, tmp_path):
    """MNIST as this server has it: tiny."""
    official = cafedcl.data.SOURCES["mnist"]
    remotes = []
    labels = np.tile(np.arange(10), 2)
    for file in FILES:
        array = labels if "labels" in file else np.ones((20, 28, 28))
        data = server.files[f"{file}.gz"] = write_idx(tmp_path / "x.gz", array)
        remotes.append(Remote(f"{server.address}/{file}.gz", hashlib.md5(data).hexdigest()))
    source = Source("mnist", official.about, official.forms, tuple(remotes))
    monkeypatch.setitem(cafedcl.data.SOURCES, "mnist", source)
    return source


def test_a_set_is_fetched_on_first_use_into_its_folder(mnist, server, data_dir):
    for _ in range(2):
        assert len(cafedcl.data.load_dataset(DataOptions(name="mnist")).train_y) == 20
    assert names(data_dir / "mnist") == sorted(f"{file}.gz" for file in FILES)
    assert len(server.requests) == 4


def test_a_set_that_cannot_be_fetched_says_which_file_to_put_where(mnist, server, data_dir):
    server.files.clear()
    with pytest.raises(CafedclError) as caught:
        cafedcl.data.load_dataset(DataOptions(name="mnist"))
    message = str(caught.value)
    assert "HTTP 404" in message
    assert message.endswith(f"or put train-images-idx3-ubyte.gz into {data_dir / 'mnist'} yourself")


def test_a_person_at_a_terminal_sees_how_far_it_is(remote, data_dir, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    fetch(remote, data_dir)
    out, err = capsys.readouterr()
    assert out == ""
    assert "file.bin" in err


def test_nobody_else_does(remote, data_dir, capsys):
    fetch(remote, data_dir)
    assert capsys.readouterr() == ("", "")


def test_all_official_addresses_are_complete():
    for source in cafedcl.data.SOURCES.values():
        for remote in source.remote:
            assert re.fullmatch(r"https?://.+/[^/]+", remote.url)
            assert re.fullmatch("[0-9a-f]{32}", remote.md5)
        fetched = [remote.name for remote in source.remote]
        assert not fetched or set(source.forms[0].paths) == set(fetched), source.name
