"""Hosts with their own addresses on one machine: network namespaces on a bridge. Needs root."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def ip(*words: str) -> str:
    """Run the `ip` command and return its output."""
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


def may_make_namespaces() -> bool:
    """Return whether this process may create network namespaces."""
    if shutil.which("ip") is None:
        return False
    name = f"cafedcl-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if done.returncode:
        return False
    ip("netns", "del", name)
    return True


class Hosts:
    """A server, at 10.x.y.1, and sites, each with a cable to the same bridge."""

    def __init__(self, sites: Sequence[str]) -> None:
        self.sites = sites
        self.tag = f"c{os.getpid()}"
        self.net = f"10.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}"
        self.names: dict[str, str] = {}

    def __enter__(self) -> "Hosts":
        self._add("hub")
        hub = self.names["hub"]
        ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", hub, "link", "set", "bridge", "up")
        for number, host in enumerate(("server", *self.sites), 1):
            self._add(host)
            mine = self.names[host]
            ip("link", "add", "eth", "netns", mine, "type", "veth", "peer", host, "netns", hub)
            ip("-n", hub, "link", "set", host, "master", "bridge", "up")
            ip("-n", mine, "addr", "add", f"{self.net}.{number}/24", "dev", "eth")
            ip("-n", mine, "link", "set", "eth", "up")
        return self

    def _add(self, host: str) -> None:
        name = f"{self.tag}-{host}"
        ip("netns", "add", name)
        self.names[host] = name
        ip("-n", name, "link", "set", "lo", "up")

    def cable(self, host: str, state: str) -> None:
        """Pull a host's cable out (`down`), or put it back (`up`)."""
        ip("-n", self.names["hub"], "link", "set", host, state)

    def traffic(self, host: str) -> tuple[int, int]:
        """Return the bytes that a host has sent and received, with all headers."""
        lines = ip("-n", self.names["hub"], "-s", "link", "show", host).split("\n")
        # These are the bridge's counters: what it received, the host has sent.
        sent = int(lines[3].split()[0])
        received = int(lines[5].split()[0])
        return sent, received

    def start(self, host: str, log: Path, *words: object) -> "subprocess.Popen[bytes]":
        """Run a cafedcl command at a host."""
        command = ["ip", "netns", "exec", self.names[host]]
        command += [sys.executable, "-m", "cafedcl", *map(str, words)]
        with log.open("wb") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def __exit__(self, *_: object) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False)
