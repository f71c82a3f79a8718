"""Run `lz-penalty guard` and an upstream that misbehaves on demand, each in a process of its own."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support import ROOT, commands

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses"}
KEY = "sk-not-a-secret-0123456789"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(port: int, seconds: float = 30) -> None:
    for _ in range(int(seconds / 0.05)):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on port {port}")


@contextmanager
def fake_upstream() -> Iterator[str]:
    """Start `tests.support.fake_upstream`; yield its address."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "tests.support.fake_upstream", str(port)], cwd=ROOT)
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


@dataclass
class Guard:
    """A running guard."""

    address: str
    upstream: str
    log: Path
    process: commands.Started

    def body(self, user: str, do: str = "stream", more: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
        """The body of a request that `fake_upstream` answers in this way."""
        model = json.dumps({"do": do, **how})
        return {"user": user, "model": model, "messages": [], "stream": do != "whole"} | (more or {})

    def post(self, route: str, body: dict[str, Any], action: str | None = None, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {KEY}"} | ({"x-lz-guard-action": action} if action else {})
        with httpx.Client(trust_env=False, timeout=30) as client:
            return client.post(self.address + PATHS[route], json=body, headers=headers, **options)

    def record(self, user: str) -> dict[str, Any]:
        """What upstream received and sent."""
        found = httpx.get(self.upstream + "/records", timeout=30, trust_env=False).json()[user]
        return found | {"sent": base64.b64decode(found["sent"])}

    def left(self, user: str, seconds: float = 10.0) -> dict[str, Any]:
        """Wait until upstream has noticed that this request was closed, and return its record."""
        end = time.monotonic() + seconds
        while not (found := self.record(user))["left"]:
            assert time.monotonic() < end, f"upstream has not noticed the end of {user}"
            time.sleep(0.02)
        return found

    def metric(self, name: str) -> float:
        """The sum of a metric's values, of one label set if the name has labels."""
        lines = httpx.get(self.address + "/metrics", trust_env=False).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def running(folder: Path, upstream: str, *options: str, **environment: str) -> Iterator[Guard]:
    """Start `lz-penalty guard` in front of this server."""
    port, log = free_port(), folder / "guard.log"
    arguments = ("guard", "--upstream", upstream, "--port", port, *options)
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    with commands.started(*arguments, log=log, env={"PYTHONPATH": path, **environment}) as process:
        for _ in range(600):
            if not process.runs():
                break
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        assert process.runs(), log.read_text()
        yield Guard(f"http://127.0.0.1:{port}", upstream, log, process)


def events(data: bytes) -> list[dict[str, Any]]:
    """The JSON events of a stream."""
    lines = (line for line in data.decode("utf-8", "replace").splitlines() if line.startswith("data: {"))
    return [json.loads(line[6:]) for line in lines]
