"""examples/vllm_offline.py in a process of its own."""

import json
import subprocess
import sys

from lz_penalty.detection import find_repetition
from tests.engines.vllm.engines import environment
from tests.support import EXAMPLES


def test_the_offline_example(tmp_path):
    out = tmp_path / "texts.json"
    run = "import json, sys, vllm_offline; texts = vllm_offline.main(dtype='float32', enforce_eager=True, max_model_len=512)"
    command = [sys.executable, "-c", f"{run}; json.dump(texts, open(sys.argv[1], 'w'))", str(out)]
    subprocess.run(command, env=environment(EXAMPLES), check=True, timeout=900)
    without, penalised = json.loads(out.read_text())
    assert find_repetition(without, min_copies=5, min_length=60)
    assert not find_repetition(penalised, min_copies=5, min_length=60)
