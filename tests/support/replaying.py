"""`lz-penalty replay` against a server of the bundled model, for the tests of the engines that serve it."""

import json

from typer.testing import CliRunner

from lz_penalty import bundled_model
from lz_penalty.cli import app


def check_replay(folder, address, style, model):
    """Check that the server's replies loop without the penalty and do not loop with it."""
    prose = [{"prompt": text, "max_tokens": 120} for text in bundled_model.prompts()[:2]]
    chat = {"body": {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 100}, "answer": "5"}
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in (*prose, chat)))
    options = ["--style", style, "--model", model, "--set", "temperature=0", "--expected", "answer", "--json"]
    done = CliRunner().invoke(app, ["replay", str(log), "-e", address, *options, "--pattern", "Answer: (.*)"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["replayed"] == found["counted"] == 3
    assert found["without"]["loops"] == found["loops_broken"] >= 1
    assert found["with_penalty"]["loops"] == found["sampled"] == 0
    assert found["checked"] == 1
    assert found["changed"] >= 2
