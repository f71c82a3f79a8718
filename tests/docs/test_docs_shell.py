"""Shell, TOML, C and C++ blocks of README and docs: commands, options, targets, files, extras and settings exist.

C programs are run. The others are parsed, by the program that would run them where it is ours, and not run: they take
minutes, a server or a hub.
"""

import ast
import json
import re
import subprocess
from importlib.util import find_spec

import pytest
import typer.main

from integrations.llama_cpp.build import TARGETS as TARGETS_OF_LLAMA_CPP
from lz_penalty import LZPenaltyConfig
from lz_penalty.cli import app
from lz_penalty.config import REQUEST_FIELDS
from lz_penalty.engines.server import ServerSettings
from lz_penalty.evaluation.study.sweep import read_sweep
from lz_penalty.native import include_dir
from lz_penalty.policy import settings_from_request
from tests.support import ROOT
from tests.support.doc_blocks import PAGES, check_names, commands, named, of_language

COMMANDS = typer.main.get_command(app)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = (ROOT / "pyproject.toml").read_text()
EXTRAS = set(
    re.findall(r"^([a-z-]+) = \[", PROJECT.split("[project.optional-dependencies]")[1].split("\n[project.")[0], re.M)
)
OTHERS = {"cd", "export", "head", "inspect", "mktemp", "vllm", "yes"}  # programs of others
PLUGIN = re.compile(r"\b(lz_penalty(?:\.\w+)+):(\w+)")


def check_command(words: list[str], folder) -> None:
    """Check one command without running it."""
    while words and re.fullmatch(r"\w+=.*", words[0], re.DOTALL):
        check_variable(words.pop(0))
    if not words:
        return
    program, *arguments = words
    if program == "lz-penalty":
        check_ours(arguments, folder)
    elif program == "make":
        assert set(arguments) <= TARGETS
    elif program in ("python", "python3"):
        check_python(arguments)
    elif program == "pip":
        for extras in re.findall(r"lz-penalty\[([\w,-]+)\]", " ".join(arguments)):
            assert set(extras.split(",")) <= EXTRAS
    elif program == "curl":
        check_request(json.loads(arguments[arguments.index("-d") + 1]))
    elif program.startswith("build/llama.cpp/out/bin/"):
        assert program.rpartition("/")[2] in TARGETS_OF_LLAMA_CPP
        given = {name[2:].replace("-", "_") for name in arguments if name.startswith("--lz-")}
        assert given <= REQUEST_FIELDS.keys()
    else:
        assert program in OTHERS, f"{program}: not a command that the pages use elsewhere"
        for argument in arguments:
            if "=" in argument:
                check_variable(argument)


def check_ours(arguments: list[str], folder) -> None:
    name, *rest = arguments
    for word in rest:
        if re.fullmatch(r"[\w.-]+\.gguf", word):
            (folder / word).touch()  # a file that must be there
    COMMANDS.commands[name].make_context(name, rest)


def check_python(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        if arguments[1].split(".")[0] in ("lz_penalty", "benchmarks", "research"):
            assert find_spec(arguments[1])
    elif arguments[0] == "-c":
        check_names(arguments[1])
        exec(compile(ast.parse(arguments[1]), "<-c>", "exec"), {})
    else:
        assert (ROOT / arguments[0]).is_file()


def check_variable(assignment: str) -> None:
    name, value = assignment.split("=", 1)
    if name == "LZ_PENALTY_SERVER":
        ServerSettings.from_json(value)


def check_request(body: dict) -> None:
    for fields in (body, body.get("vllm_xargs", {}), body.get("custom_params", {})):
        settings_from_request(fields)


@pytest.mark.parametrize("block", of_language("sh"), ids=str)
def test_shell(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = commands(block.text)
    assert found
    for words in found:
        check_command(words, tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "lz-penalty detekt outputs.jsonl",
        "lz-penalty cost --taks 3",
        "lz-penalty cost --tasks many",
        "make tset",
        "pip install 'lz-penalty[vlm]'",
        "python benchmarks/gone.py",
        "python -m lz_penalty.gone",
        """curl localhost -d '{"vllm_xargs": {"lz_presett": "guarded"}}'""",
        """export LZ_PENALTY_SERVER='{"defualt": {}}'""",
        "build/llama.cpp/out/bin/llama-server --lz-presett guarded",
        "build/llama.cpp/out/bin/llama-srver",
        "lz_penalty doctor",
    ],
)
def test_the_check_of_shell_can_fail(line, tmp_path):
    (words,) = commands(line)
    with pytest.raises(Exception):  # noqa: B017, PT011
        check_command(words, tmp_path)


# A file of `serve-llama --models` is read by tests/engines/llama_cpp.
SWEEPS = [block for block in of_language("toml") if block.page != "docs/llama_cpp.md"]


@pytest.mark.parametrize("block", SWEEPS, ids=str)
def test_toml(block, tmp_path):
    (tmp_path / "sweep.toml").write_text(block.text)
    assert read_sweep(tmp_path / "sweep.toml").name


@pytest.mark.parametrize("block", of_language("cpp"), ids=str)
def test_cpp_names_what_the_headers_declare(block):
    headers = "".join(path.read_text() for path in (ROOT / "src" / "lz_penalty" / "native").glob("*.h"))
    for name in set(re.findall(r"\bLZ_PENALTY_\w+|\blz_penalty_\w+(?!\w*\.h)", block.text, re.IGNORECASE)):
        assert re.search(rf"\b{name}\b", headers) or f'#include "{name}.h"' in block.text, name


@pytest.mark.parametrize("block", of_language("c"), ids=str)
def test_c_programs_print_what_the_page_says(block, tmp_path):
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(block.text)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{include_dir()}"]
    subprocess.run(["cc", *flags, str(source), "-o", str(program), "-lm"], check=True)
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    assert printed.split() == re.findall(r"/\* prints (\S+) \*/", block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_the_prose_names_exists(page):
    """`lz_penalty.x.Y`, `make x`, `tests/x.py`, `lz-penalty x` in running text."""
    text = page.read_text(encoding="utf-8")
    for path, name in PLUGIN.findall(text):
        named(f"{path}.{name}")
    for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
        if re.fullmatch(r"lz_penalty(\.\w+)+(?<!\.h)", code):
            named(code)
        elif found := re.match(r"make ([a-z-]+)$", code):
            assert found[1] in TARGETS, code
        elif found := re.match(r"lz-penalty ([a-z-]+)", code):
            assert found[1] in COMMANDS.commands, code
        elif re.fullmatch(r"(tests|benchmarks|docs|examples|research|requirements|src)/[\w/.*-]+", code):
            assert list(ROOT.glob(code.rstrip("/"))), code
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert "://" in target or (page.parent / target).exists(), target


def test_presets_are_what_the_readme_says():
    table = (ROOT / "README.md").read_text()
    for name in re.findall(r"`LZPenaltyConfig\.(\w+)\(\)`", table):
        getattr(LZPenaltyConfig, name)()
