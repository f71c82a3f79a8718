"""examples/sglang_offline.py in a process of its own."""

import json
import subprocess
import sys

from lz_penalty.detection import find_repetition
from tests.engines.sglang.engines import ENGINE, environment
from tests.support import EXAMPLES


def test_the_offline_example(tmp_path):
    out = tmp_path / "texts.json"
    settings = {name: value for name, value in ENGINE.items() if name != "model_path"}
    run = "import json, sys, sglang_offline; texts = sglang_offline.main(**json.loads(sys.argv[2]))"
    command = [sys.executable, "-c", f"{run}; json.dump(texts, open(sys.argv[1], 'w'))", str(out), json.dumps(settings)]
    subprocess.run(command, env=environment(EXAMPLES), check=True, timeout=900)
    without, penalised = json.loads(out.read_text())
    assert find_repetition(without, min_copies=5, min_length=60)
    assert not find_repetition(penalised, min_copies=5, min_length=60)
