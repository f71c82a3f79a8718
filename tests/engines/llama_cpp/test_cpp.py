"""The headers in a C++ program against the real `llama.h`: the same tokens, and AddressSanitizer finds nothing."""

import os
import subprocess
from pathlib import Path

import llama_cpp
import pytest

from lz_penalty.engines.llama_cpp._processor import special_ids
from lz_penalty.native import include_dir
from tests.support.greedy import NEW, PRESETS, assert_same

PACKAGES = Path(llama_cpp.__file__).parent.parent


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    out = tmp_path_factory.mktemp("cpp") / "decode"
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=all", f"-I{PACKAGES / 'include'}", f"-I{include_dir()}"]
    libraries = [f"-L{PACKAGES / 'lib'}", f"-Wl,-rpath,{PACKAGES / 'lib'}", "-lllama", "-lggml", "-lggml-base"]
    source = Path(__file__).with_name("decode.cpp")
    subprocess.run(["g++", *flags, str(source), "-o", str(out), *libraries], check=True)
    return out


def test_the_same_tokens(program, llm, gguf_path, prompts, truth):
    exempt = ",".join(map(str, special_ids(llm)))
    for prompt in prompts:
        command = [str(program), str(gguf_path), str(NEW), exempt, ",".join(map(str, prompt))]
        quiet = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}  # of llama.cpp's own
        done = subprocess.run(command, capture_output=True, text=True, env=quiet, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert_same([int(line) for line in done.stdout.split()], *truth(prompt, PRESETS["guarded"]))
