"""Every Python block of README and docs runs; those that need another environment are checked for syntax and names."""

import ast
import asyncio
import copy
import inspect
from pathlib import Path

import pytest

import lz_penalty
from lz_penalty import bundled_model
from lz_penalty.engines import transformers as lz
from tests.support import ROOT
from tests.support.doc_blocks import PAGES, Block, blocks, check_names, imports, of_language
from tests.support.judge_server import serve, verdict

# Engines that live in environments of their own. Their tests run the examples; a block that uses one is not run here.
ELSEWHERE = {"vllm", "sglang", "mlx_lm", "llama_cpp"}


def uses_another_engine(code: str) -> bool:
    tree = ast.parse(code)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    parts = {part for path in imports(tree).values() for part in path.split(".")}
    return bool(ELSEWHERE & (names | parts))


def runs(block: Block) -> bool:
    return block.why is None and not uses_another_engine(block.text)


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def reader(model, tokenizer, tmp_path, monkeypatch):
    """The names that the pages use without defining them: a model, a tokenizer, prompts, some text, a folder with outputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-secret")
    model = copy.deepcopy(model)
    model.generation_config.max_new_tokens = 20
    text = bundled_model.passages()[0][:500]
    (tmp_path / "outputs.jsonl").write_text('{"response": "A text."}\n')
    prompts = bundled_model.prompts()[:2]
    tokens = tokenizer(text).input_ids
    yield {
        "model": model,
        "tokenizer": tokenizer,
        "prompt": prompts[0],
        "prompts": prompts,
        "inputs": tokenizer(prompts[:1], return_tensors="pt"),
        "prompt_ids": tokens[:20],
        "tokens": tokens,
        "token": tokens[20],
        "text": text,
        "texts": [text, text],
    }
    lz.disable()


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "python" for b in blocks(page))], ids=ids)
def test_blocks_of_the_page_run_one_after_the_other(page, reader):
    with serve(lambda body, number: verdict(False)) as server:
        for block in blocks(page):
            if block.language == "python" and runs(block):
                code = block.text.replace("http://localhost:8000/v1", server.url)
                compiled = compile(code, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                if compiled.co_flags & inspect.CO_COROUTINE:
                    asyncio.run(eval(compiled, reader))
                else:
                    exec(compiled, reader)


@pytest.mark.parametrize("block", [*of_language("python"), *of_language("pycon")], ids=str)
def test_names_of_the_block_exist(block):
    check_names(block.text)


def test_most_blocks_are_run():
    """A block that is not run says why, or is on a page of another engine or in the README."""
    python = of_language("python")
    assert sum(map(runs, python)) >= 15
    assert {block.page for block in python if not runs(block) and block.why is None} <= {
        *(f"docs/{name}.md" for name in ("vllm", "sglang", "mlx", "llama_cpp")),
        "README.md",
    }


def test_the_check_of_names_can_fail():
    for code in (
        "from lz_penalty import LZPenaltyKonfig",
        "from lz_penalty.engines.vllm import Missing",
        "from lz_penalty.engines.mlx_lm import LZPenaltyProcessor\nLZPenaltyProcessor(1, tokeniser=2)",
    ):
        with pytest.raises((KeyError, AssertionError)):
            check_names(code)


def test_the_signature_on_the_page_for_engine_authors():
    page = blocks(ROOT / "docs" / "engine-authors.md")
    shown = next(block for block in page if block.text.startswith("def apply_lz_penalty_("))
    defined: dict = {}
    exec(shown.text, defined)
    strip = [
        [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]
        for function in (defined["apply_lz_penalty_"], lz_penalty.apply_lz_penalty_)
    ]
    assert strip[0] == strip[1]
