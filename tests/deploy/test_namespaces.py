"""Three hosts with addresses of their own, as network namespaces: a server and two sites, one cut off and healed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cafedcl.deploy.places import ServerOptions, make_places
from cafedcl.journal import NAME

SITES = ("north", "south")
ROUNDS = 40
"""More than are needed: the test ends the run when the healed site has answered again."""


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


class Hosts:
    """Namespaces on one bridge; 10.x.y.1 is the server's, .2 and .3 the sites'."""

    def __init__(self):
        self.tag = f"c{os.getpid() % 100000:05d}"
        self.net = f"10.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}"
        self.names = {}

    def __enter__(self):
        self._add("hub")
        ip("-n", self.names["hub"], "link", "add", "bridge", "type", "bridge")
        ip("-n", self.names["hub"], "link", "set", "bridge", "up")
        for number, host in enumerate(("server", *SITES), 1):
            self._add(host)
            ip(
                "link",
                "add",
                "eth",
                "netns",
                self.names[host],
                "type",
                "veth",
                "peer",
                host,
                "netns",
                self.names["hub"],
            )
            ip("-n", self.names["hub"], "link", "set", host, "master", "bridge", "up")
            ip("-n", self.names[host], "addr", "add", f"{self.net}.{number}/24", "dev", "eth")
            ip("-n", self.names[host], "link", "set", "eth", "up")
        return self

    def _add(self, host):
        name = f"{self.tag}-{host}"
        ip("netns", "add", name)
        self.names[host] = name
        ip("-n", name, "link", "set", "lo", "up")

    def cable(self, host, state):
        """Pull a host's cable out, or put it back."""
        ip("-n", self.names["hub"], "link", "set", host, state)

    def start(self, host, log, *words):
        """Run a command at a host."""
        command = ["ip", "netns", "exec", self.names[host], sys.executable, "-m", "cafedcl", *map(str, words)]
        with log.open("wb") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def __exit__(self, *_):
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False)


def may_make_namespaces():
    if shutil.which("ip") is None:
        return False
    name = f"cafedcl-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        ip("netns", "del", name)
    return made


def until(condition, patience, what):
    end = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.3)
    return found


def events(run):
    file = run / NAME
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def outcome(run, client, since):
    """Return how a client's visits went after a time: True for an answer, False for none."""
    seen = [event for event in events(run) if event["event"] == "client" and event["client"] == client]
    return [event["failure"] is None for event in seen if event["time"] > since]


@pytest.mark.slow
@pytest.mark.skipif(not may_make_namespaces(), reason="network namespaces need root")
def test_a_site_that_is_cut_off_is_done_without_and_takes_part_again_when_healed(tmp_path):
    folder, run = tmp_path / "d", tmp_path / "run"
    with Hosts() as hosts:
        options = ServerOptions(host=f"{hosts.net}.1")
        server, *sites = make_places(folder, options, dict.fromkeys(SITES, ""), simulated=True)
        processes = [hosts.start("server", tmp_path / "server.log", "deploy", "server", server)]
        try:
            until(lambda: "ready" in (tmp_path / "server.log").read_text(), 90, "no server")
            for name, place in zip(SITES, sites, strict=True):
                processes.append(hosts.start(name, tmp_path / f"{name}.log", "deploy", "site", place))
            quick = ["model.name=mlp", "train.epochs=1", "split.alpha=1.0", "engine.deadline=12", "engine.device=cpu"]
            words = [word for setting in quick for word in ("--set", setting)]
            words += ["--rounds", str(ROUNDS), "--out", str(run), "--json"]
            processes.append(hosts.start("server", tmp_path / "run.log", "deploy", "run", server, *words))

            def said():
                return (tmp_path / "run.log").read_text()

            until(lambda: True in outcome(run, 1, 0), 120, said)
            cut = time.time()
            hosts.cable("south", "down")
            until(lambda: False in outcome(run, 1, cut), 60, said)
            healed = time.time()
            hosts.cable("south", "up")
            until(lambda: True in outcome(run, 1, healed), 120, said)
            assert all(outcome(run, 0, 0))
        finally:
            for process in reversed(processes):
                os.killpg(process.pid, signal.SIGTERM)
            for process in reversed(processes):
                process.wait(30)
    lines = [json.loads(line) for line in Path(run / "metrics.jsonl").read_text().splitlines()]
    assert {line["status"] for line in lines} == {"ok"}
    assert any([failure["client"] for failure in line["failed"]] == [1] for line in lines)
