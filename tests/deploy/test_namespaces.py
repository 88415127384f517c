"""Three hosts with addresses of their own, as network namespaces: a server and two sites, one cut
off and healed.
"""

import importlib.util
import json
import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cafedcl.deploy.folders import ServerOptions, make_folders
from cafedcl.federation.journal import NAME

SITES = ("north", "south")
ROUNDS = 100_000
"""More than anybody waits for: the run must still go on when the healed site is back, however fast
rounds without it are. The test ends it.
"""


def load_hosts():
    """Return the module that makes namespaces; it lies beside the benchmark that uses it too."""
    path = Path(__file__).parents[2] / "benchmarks" / "deployment" / "hosts.py"
    spec = importlib.util.spec_from_file_location("deployment_hosts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hosts_module = load_hosts()


def until(condition, process, log):
    """Wait for something that will be so as long as a process lives."""
    while not condition():
        assert process.poll() is None, log.read_text()
        time.sleep(0.3)


def events(run):
    file = run / NAME
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def outcome(run, client, since):
    """Return how a client's visits went after a time: True for an answer, False for none."""
    seen = [
        event for event in events(run) if event["event"] == "client" and event["client"] == client
    ]
    return [event["failure"] is None for event in seen if event["time"] > since]


@pytest.mark.slow
@pytest.mark.usefixtures("nginx")
@pytest.mark.skipif(not hosts_module.may_make_namespaces(), reason="network namespaces need root")
def test_a_site_that_is_cut_off_is_done_without_and_takes_part_again_when_healed(tmp_path):
    folder = tmp_path / "d"
    run = tmp_path / "run"
    with hosts_module.Hosts(SITES) as hosts:
        options = ServerOptions(host=f"{hosts.net}.1")
        server, *sites = make_folders(folder, options, dict.fromkeys(SITES, ""), simulated=True)
        processes = [hosts.start("server", tmp_path / "server.log", "deploy", "server", server)]
        try:
            log = tmp_path / "server.log"
            until(lambda: "ready" in log.read_text(), processes[0], log)
            for name, place in zip(SITES, sites, strict=True):
                processes.append(
                    hosts.start(name, tmp_path / f"{name}.log", "deploy", "site", place)
                )
            quick = [
                "model.name=mlp",
                "model.width=0.1",
                "train.epochs=1",
                "train.iterations=1",
                f"evaluate.every={ROUNDS}",
                f"evaluate.own_every={ROUNDS}",
                "split.alpha=1.0",
                # A site that is cut off is missed because it disconnects, not because it is late.
                "engine.deadline=3600",
                "engine.device=cpu",
            ]
            words = [word for setting in quick for word in ("--set", setting)]
            words += ["--rounds", str(ROUNDS), "--out", str(run), "--json"]
            log = tmp_path / "run.log"
            training = hosts.start("server", log, "deploy", "run", server, *words)
            processes.append(training)
            until(lambda: True in outcome(run, 1, 0), training, log)
            cut = time.time()
            hosts.cable("south", "down")
            until(lambda: False in outcome(run, 1, cut), training, log)
            healed = time.time()
            hosts.cable("south", "up")
            until(lambda: True in outcome(run, 1, healed), training, log)
            assert all(outcome(run, 0, 0))
        finally:
            for process in reversed(processes):
                os.killpg(process.pid, signal.SIGTERM)
            for process in reversed(processes):
                process.wait(600)
    lines = [json.loads(line) for line in Path(run / "metrics.jsonl").read_text().splitlines()]
    assert {line["status"] for line in lines} == {"ok"}
    assert any([failure["client"] for failure in line["failed"]] == [1] for line in lines)
