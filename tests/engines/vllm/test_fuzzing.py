"""A few cases of `make fuzz` for vLLM; a wrong plug-in is found."""

from unittest import mock

import pytest

from lz_penalty.engines import _requests as request_settings
from lz_penalty.engines.vllm import _v1 as batch_state
from tests.fuzzing import fields, histories, plugins, running


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Restore what the fuzzing changes: the server settings, and the slow parts of a processor's start."""
    monkeypatch.setattr(request_settings, "SLACK", request_settings.SLACK)
    monkeypatch.setattr(batch_state, "newest_reader", batch_state.newest_reader)
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    yield
    mock.patch.stopall()
    monkeypatch.undo()
    plugins.server_settings.cache_clear()


def findings(part, count):
    """Return the findings of the first cases. Only full runs judge time and memory."""
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
