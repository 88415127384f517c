import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cafedcl import api
from cafedcl.cli.compare import watch
from cafedcl.core.errors import CafedclError
from cafedcl.report.watch import Reports, ReportServer, serve_report

SMALL = {"model.name": "mlp", "model.width": 0.1, "train.epochs": 1, "engine.workers": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched") / "run"
    api.run("fedavg", split="iid", clients=3, rounds=2, device="cpu", settings=SMALL, out=folder)
    return folder


@pytest.fixture
def serving() -> Iterator[Callable[[Reports], ReportServer]]:
    """Serve in a thread, and stop at the end."""
    stops: list[Callable[[], None]] = []

    def start(reports: Reports) -> ReportServer:
        context = serve_report(reports, "127.0.0.1", 0)
        server = context.__enter__()
        thread = threading.Thread(target=server.run)
        thread.start()
        stops.extend(
            [server.http.shutdown, thread.join, lambda: context.__exit__(None, None, None)]
        )
        return server

    yield start
    for stop in stops:
        stop()


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=600) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        return str(answer.read().decode())


def test_the_page_is_served_and_a_new_version_after_a_new_line(
    run: Path, serving: Callable[[Reports], ReportServer]
) -> None:
    server = serving(Reports([run.parent], 0.1))
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", server.address)
    page, version = get(server.address), get(f"{server.address}version")
    assert "report-data" in page
    assert f'const version = "{version}"' in page
    assert "connect-src 'self'; default-src 'none'" in page
    assert get(f"{server.address}version") == version
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    with (run / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps({**line, "round": 2}) + "\n")
    time.sleep(0.15)
    newer = get(f"{server.address}version")
    assert newer != version
    assert f'const version = "{newer}"' in get(server.address)
    with pytest.raises(urllib.error.HTTPError, match="404") as error:
        get(f"{server.address}etc/passwd")
    error.value.close()


def test_it_is_built_again_only_when_something_changed_and_not_too_often(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    monkeypatch.setattr(
        Reports, "build", lambda self: built.append(1) or "<html><body></body></html>"
    )
    reports = Reports([run], 100)
    reports.current()
    (run / "metrics.jsonl").touch()
    reports.current()
    assert len(built) == 1, "it is too soon"
    reports.every = 0
    reports.current()
    reports.current()
    assert len(built) == 2


def test_it_waits_for_the_first_round(tmp_path: Path) -> None:
    version, page = Reports([tmp_path], 1).current()
    assert "Nothing to show yet" in page
    assert "holds no run folder" in page
    assert version in page
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("<b>")
    assert "no run has a scored round" in Reports([tmp_path], 1).current()[1]


def test_what_vanishes_is_said_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    reports = Reports([tmp_path / "run"], 0)
    (tmp_path / "run").rmdir()
    assert "there is no such folder" in reports.current()[1]


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(CafedclError, match="nowhere: there is no such folder"):
        Reports([tmp_path / "nowhere"], 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            CafedclError, match=f"--port {port}: in use; choose another one, or --port 0"
        ):
            watch([tmp_path], port=port)
    with pytest.raises(CafedclError, match=r"--host 203\.0\.113\.9 --port 0: cannot be used"):
        watch([tmp_path], host="203.0.113.9", port=0)


def test_ctrl_c_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", interrupt)
    watch([tmp_path], host="127.0.0.1", port=0, every=1.0)
    assert re.match(r"serving http://127\.0\.0\.1:\d+/", capsys.readouterr().out)
