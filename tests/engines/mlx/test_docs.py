"""The commands of the documentation that only mlx-lm's server can check: `serve-mlx`."""

import sys

from mlx_lm import server as stock

from tests.support.doc_blocks import options_of


def test_commands(monkeypatch):
    """mlx-lm's own parser takes the options."""
    read = []
    monkeypatch.setattr(stock, "ModelProvider", read.append)
    monkeypatch.setattr(stock, "run", lambda host, port, provider: None)
    calls = options_of("serve-mlx")
    assert calls
    for _, arguments in calls:
        monkeypatch.setattr(sys, "argv", ["serve-mlx", *arguments])
        stock.main()
    assert len(read) == len(calls)
    assert all(one.model for one in read)
