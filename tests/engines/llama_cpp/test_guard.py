"""`lz-penalty guard` in front of llama-cpp-python's server, which answers one request at a time."""

from tests.support.guarded_server import check_streams, started
from tests.support.guarding import free_port, wait_for


def test_streams_one_at_a_time(tmp_path, gguf_path):
    port = free_port()
    with started("lz_penalty", "serve-llama", gguf_path, "--port", port):
        wait_for(port, 300)
        found = check_streams(f"http://127.0.0.1:{port}", "bundled", 12, tmp_path, at_once=1, repeat_penalty=1.0)
    assert found["cut"] >= 1
    assert found["healthy"] >= 6
