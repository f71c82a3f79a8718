"""The commands and files of the documentation that only llama-cpp-python's server can check: `serve-llama`."""

import pytest

from lz_penalty import LZPenaltyConfig
from lz_penalty.engines.llama_cpp._options import read_models, read_options
from tests.support.doc_blocks import of_language, options_of

FILES = [block for block in of_language("toml") if block.page == "docs/llama_cpp.md"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the pages name."""
    monkeypatch.chdir(tmp_path)
    for name in ("model.gguf", "other.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "models.toml").write_text(FILES[0].text)
    return tmp_path


def test_commands(folder):
    calls = options_of("serve-llama")
    assert len(calls) >= 2
    for _, arguments in calls:
        if arguments != ["--help"]:
            assert read_options(arguments).models


@pytest.mark.parametrize("block", FILES, ids=str)
def test_files_of_models(folder, block):
    (folder / "given.toml").write_text(block.text)
    first, second = read_models(folder / "given.toml")
    assert first.operator.default == LZPenaltyConfig.guarded()
    assert second.operator.default == LZPenaltyConfig.failsafe()
