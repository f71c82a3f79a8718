"""If a part of the native sampler is missing or does not fit, a warning says so and Python applies the penalty."""

import logging
from types import SimpleNamespace

import llama_cpp
import pytest

from lz_penalty import LZPenaltyConfig, native
from lz_penalty.engines.llama_cpp import _processor as engine
from lz_penalty.engines.llama_cpp import _sampler as llama_sampler
from lz_penalty.engines.llama_cpp import _server as llama_server
from lz_penalty.engines.llama_cpp._options import read_options
from lz_penalty.engines.llama_cpp._processor import LZPenaltyProcessors
from lz_penalty.engines.llama_cpp._sampler import native_sampler
from lz_penalty.errors import BackendUnavailableError
from lz_penalty.native import _building as building
from tests.engines.llama_cpp.decoding import by_generate
from tests.support.greedy import PRESETS, assert_same


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Reset what a process loads and caches, as in a new process of a new user."""
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "cache"))
    native._library.cache_clear()
    llama_sampler._library.cache_clear()
    yield tmp_path / "cache"
    native._library.cache_clear()
    llama_sampler._library.cache_clear()


def no_compiler(monkeypatch, cache):
    monkeypatch.setenv("CC", "no-such-compiler")


def broken_library(monkeypatch, cache):
    for source in ("library.c", "llama_sampler.c"):
        building.build(source, native.include_dir()).write_bytes(b"not a library")


def no_cache(monkeypatch, cache):
    cache.write_text("a file where the folder should be")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_compiler, "'no-such-compiler' was not found: install a C compiler"),
        (broken_library, "cannot be loaded"),
        (no_cache, "the cache cannot be made"),
    ],
)
def test_what_cannot_be_compiled_runs_in_python(llm, prompts, truth, fresh, monkeypatch, caplog, damage, message):
    damage(monkeypatch, fresh)
    config = PRESETS["guarded"]
    with caplog.at_level(logging.WARNING):
        processors = LZPenaltyProcessors(llm, config)
    assert message in caplog.text
    assert_same(by_generate(llm, prompts[1], processors), *truth(prompts[1], config))
    with pytest.raises(BackendUnavailableError, match=message):
        LZPenaltyProcessors(llm, config, native=True)
    with pytest.raises(BackendUnavailableError, match=message):
        native_sampler(llm, config)


def test_another_sampler_interface_is_refused_before_anything_is_loaded(llm, prompts, truth, fresh, monkeypatch):
    monkeypatch.setattr(llama_sampler, "_FUNCTIONS", llama_sampler._FUNCTIONS[:6])
    with pytest.raises(BackendUnavailableError, match=r"another sampler interface .*: use LZPenaltyProcessors"):
        native_sampler(llm, LZPenaltyConfig())
    assert not fresh.exists()
    config = PRESETS["paper"]
    assert_same(by_generate(llm, prompts[1], LZPenaltyProcessors(llm, config)), *truth(prompts[1], config))


def test_another_layout_is_refused(llm, monkeypatch):
    llama_sampler._library.cache_clear()
    monkeypatch.setattr(llama_sampler, "_layout", lambda: (48, 40, 16, 12, 4, 32, 24))
    with pytest.raises(BackendUnavailableError, match="another sampler interface"):
        native_sampler(llm, LZPenaltyConfig())


def test_a_version_that_cannot_tell_special_tokens_is_named(llm, monkeypatch):
    monkeypatch.delattr(llama_cpp, "llama_vocab_is_eog")
    monkeypatch.setattr(engine, "_vocabularies", {})
    with pytest.raises(BackendUnavailableError, match=r"has no llama_vocab_is_eog: use 0\.3\.36 or later"):
        LZPenaltyProcessors(llm, LZPenaltyConfig())
    assert len(LZPenaltyProcessors(llm, LZPenaltyConfig(), penalise_special_tokens=True)) == 1


def without_the_function(monkeypatch):
    monkeypatch.delattr(llama_server.stock, "prepare_request_resources")


def without_its_call(monkeypatch):
    monkeypatch.setattr(llama_server.stock, "get_event_publisher", lambda *given: None)


@pytest.mark.parametrize("change", [without_the_function, without_its_call])
def test_another_server_is_refused(gguf_path, monkeypatch, change):
    change(monkeypatch)
    with pytest.raises(BackendUnavailableError, match=r"has another server than .* in get_event_publisher"):
        llama_server.serve(read_options([str(gguf_path)]))


def test_what_others_put_around_the_stock_server_stays(gguf_path, monkeypatch):
    """A second app is penalised too, and neither drops the other library's wrapper."""
    called = []
    stock, original = llama_server.stock, llama_server.stock.prepare_request_resources

    def foreign(*given):
        called.append(given)

    foreign.__wrapped__ = original
    monkeypatch.setattr(stock, "prepare_request_resources", foreign)
    monkeypatch.setattr(llama_server, "_process", SimpleNamespace(with_penalty=None))
    for _ in range(2):
        llama_server._penalise_requests()
        stock.prepare_request_resources("body", None, None, {})
    assert len(called) == 2
    assert stock.prepare_request_resources is llama_server._process.with_penalty
