"""A few cases of what `make fuzz` does with vLLM; and it notices what is wrong."""

from unittest import mock

import pytest

from lz_penalty.engines import _requests as request_settings
from lz_penalty.engines.vllm import _v1 as batch_state
from tests.fuzzing import fields, histories, plugins, running


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """The fuzzing starts many servers, and leaves out what takes long at the start of a processor."""
    monkeypatch.setattr(request_settings, "SLACK", request_settings.SLACK)
    monkeypatch.setattr(batch_state, "newest_reader", batch_state.newest_reader)
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    yield
    mock.patch.stopall()
    monkeypatch.undo()
    plugins.server_settings.cache_clear()


def findings(part, count):
    """Of the first cases; time and memory are judged in full runs only."""
    return running.fuzz("smoke", part._replace(seconds=1e9, megabytes=1e9), 0, range(count)).shown


def test_requests(monkeypatch):
    monkeypatch.setattr(fields, "MOST", 3)
    assert not findings(plugins.part("vllm"), 300)


def test_histories():
    assert not findings(histories.part("vllm"), 30)


def test_a_wrong_history_is_found(monkeypatch):
    """A history that is loaded lacks its newest token."""
    part = histories.part("vllm")
    context = batch_state.Request.context
    monkeypatch.setattr(batch_state.Request, "context", lambda self: context(self)[:-1])
    assert findings(part, 30)
