"""`lz-penalty guard` in front of a vLLM server: 500 concurrent streams."""

from tests.engines.vllm.engines import serve
from tests.support.guarded_server import check_streams


def test_five_hundred_streams(tmp_path):
    with serve("--max-num-seqs", "64", "--max-model-len", "512") as address:
        found = check_streams(address, "bundled", 500, tmp_path)
    assert found["cut"] >= 100
    assert found["healthy"] >= 300
