"""One upstream and one guard for the tests of a file."""

import pytest

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from tests.support.guarding import fake_upstream, running


@pytest.fixture(scope="module")
def upstream():
    with fake_upstream() as address:
        yield address


@pytest.fixture(scope="module")
def guard(upstream, tmp_path_factory):
    with running(tmp_path_factory.mktemp("guard"), upstream) as one:
        yield one
