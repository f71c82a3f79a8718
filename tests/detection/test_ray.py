"""A scan on a local Ray equals the scan without Ray. It runs in its own process, since Ray leaves threads and warnings."""

import json
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from tests.support import DEEP, commands

pytestmark = pytest.mark.ray

LOOP = "No! " * 100
FINE = "A text that says one thing after another and then ends."

COMPARE = """
import json, sys
import ray
from lz_penalty.detection.scan import Reading, Scan, scan, scan_ray
from lz_penalty.detection._verdict import CRITERIA

files = json.loads(sys.argv[1])
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
what = Scan(criteria=tuple(CRITERIA), reading=Reading(max_record=5_000), keep_text="flagged")
expected = list(scan(files, what))
seen = []
found = list(scan_ray(files, what, tick=seen.append, piece_bytes=2_000))
address = ray.get_runtime_context().gcs_address
import subprocess
there = [sys.executable, "-m", "lz_penalty", "detect", *files, "--json", "--ray-address", address]
connected = subprocess.run(there, capture_output=True, text=True, cwd="/")
print(json.dumps({
    "equal": found == expected, "results": len(found), "flagged": sum(getattr(one, "flagged", False) for one in found),
    "problems": [str(one) for one in found if hasattr(one, "message")], "bytes": sum(seen), "pieces": len(seen),
    "still running": ray.is_initialized(), "connected": json.loads(connected.stdout),
}))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    rows = [json.dumps({"text": LOOP if number % 5 == 0 else f"{FINE} {number}"}) for number in range(60)]
    rows[7], rows[20], rows[33], rows[34] = "{broken", "", '{"other": 1}', json.dumps({"text": "x" * 6_000})
    (folder / "a.jsonl").write_text("\n".join(rows) + "\n\n\n")
    (folder / "b.jsonl").write_text("\n".join(rows[:30]))
    (folder / "c.txt").write_text(LOOP)
    (folder / "d.txt").write_text("")
    pyarrow.parquet.write_table(pyarrow.table({"text": [LOOP, FINE, None, LOOP]}), folder / "e.parquet")
    return [
        str(folder / name) for name in ("a.jsonl", "b.jsonl", "c.txt", "d.txt", "missing.txt", "e.parquet", "a.jsonl")
    ]


def local(files: list[str], *options: str) -> subprocess.CompletedProcess:
    return commands.run("detect", *files, "--json", *options)


@pytest.mark.skipif(not DEEP, reason="starts a second Ray and five processes: make test-deep")
def test_equal_to_the_local_scan_result_by_result(files, tmp_path):
    (tmp_path / "compare.py").write_text(COMPARE)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "compare.py"), json.dumps(files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["equal"]
    assert found["flagged"] == 11 + 5 + 1 + 2 + 11
    assert any("a.jsonl:34: there is no field" in problem for problem in found["problems"])
    assert len(found["problems"]) == 3 + 1 + 0 + 1 + 1 + 1 + 3
    assert found["pieces"] > 12  # pieces of a file really were examined apart
    assert found["still running"]  # a cluster that was there stays
    assert found["connected"] == json.loads(local(files).stdout)  # also from a process elsewhere, by address


def test_the_command_starts_a_ray_of_its_own(files):
    plain = local(files)
    command = [sys.executable, "-m", "lz_penalty", "detect", *files, "--json", "--ray"]
    on_ray = subprocess.run(command, capture_output=True, text=True, check=False)
    assert on_ray.returncode == plain.returncode == 3
    assert on_ray.stdout == plain.stdout
    assert on_ray.stderr == plain.stderr


def test_standard_input_is_refused():
    done = local(["-"], "--ray")
    assert done.returncode == 2
    assert "cannot be read on a Ray cluster" in done.stderr
