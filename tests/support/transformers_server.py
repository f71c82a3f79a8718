"""A `transformers serve` with the penalty, in a process of its own."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import commands

MODULE = "lz_penalty.engines.transformers"
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@contextmanager
def running(log: Path, *options: str, **environment: str) -> Iterator[str]:
    """Start a server process; yield its address. It loads the model that a request names."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ("serve", "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", port, *options)
    with commands.started(*command, module=MODULE, log=log, env=OFFLINE | environment) as server:
        for _ in range(600):
            if not server.runs() or _listens(port):
                break
            time.sleep(0.1)
        assert server.runs(), log.read_text()
        yield f"http://127.0.0.1:{port}"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
