"""`lz-penalty guard` in front of `transformers serve`: 500 concurrent streams in `make test-deep`."""

import pytest

from lz_penalty import bundled_model
from tests.support import quick_or_deep

pytest.importorskip("fastapi")
pytest.importorskip("accelerate")

from tests.support.guarded_server import check_streams
from tests.support.transformers_server import running

BATCHING = ("--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512")


def test_streams(tmp_path):
    count = quick_or_deep(9, 500)
    with running(tmp_path / "log", *BATCHING) as address:
        found = check_streams(address, str(bundled_model.path()), count, tmp_path)
    assert found["cut"] >= count // 6
    assert found["healthy"] >= count // 2
