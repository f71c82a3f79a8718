"""The sampler for llama.cpp has the fields, bounds, defaults and presets of `LZPenaltyConfig`; nothing is built here."""

import os
import re
import shutil
import subprocess
from dataclasses import fields, replace

import pytest

from integrations.llama_cpp import build
from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty._checks import MAX_TOKEN_IDS
from lz_penalty.config import _CHECKS, FORMULAS, LOOKBACKS, PRESETS, REQUEST_FIELDS
from lz_penalty.engines._special_tokens import MAX_SPECIAL
from lz_penalty.native import include_dir

SOURCE = (build.HERE / "lz.cpp").read_text()
HEADER = (build.HERE / "lz.h").read_text()
PATCH = build.PATCH.read_text()
ROW = re.compile(
    r'^ +\{ "(lz_\w+)", +([\d.]+), +([\d.]+), +(true|false),.*?&common_params_lz::(\w+).*?\{(.*?)\} \},$', re.M
)
TABLE = {name: row for name, *row in ROW.findall(SOURCE)}
APART = {"lz_preset", "lz_exempt_token_ids"}  # the two fields that are neither a number nor one of two words
WORDS = {"formula": FORMULAS, "lookback": LOOKBACKS, "include_prompt": ("false", "true")}


def attribute(name):
    """The name of a field in the C++ code: that of the request field."""
    return "penalty" if name == "strength" else name


def test_every_field_is_known():
    assert TABLE.keys() | APART == REQUEST_FIELDS.keys()
    assert all(f'"{name}"' in SOURCE for name in APART)
    assert {row[3] for row in TABLE.values()} == {attribute(REQUEST_FIELDS[name]) for name in TABLE}


def test_every_field_is_an_option():
    options = re.findall(r'^\+ +\{"--(lz-[\w-]+)"\}, "\w+",$', PATCH, re.M)
    stored = re.findall(r'^\+ +params\.sampling\.lz\.args\["(\w+)"\] = value;$', PATCH, re.M)
    assert [option.replace("-", "_") for option in options] == stored
    assert set(stored) == REQUEST_FIELDS.keys()
    assert len(stored) == len(REQUEST_FIELDS)


def accepts(check, value):
    try:
        check("a field", value)
    except LZPenaltyError:
        return False
    return True


@pytest.mark.parametrize("name", TABLE)
def test_bounds(name):
    low, high, none, kind, words = TABLE[name]
    check = _CHECKS[REQUEST_FIELDS[name]]
    assert accepts(check, None) == (none == "true")
    if words.strip():
        assert tuple(re.findall(r'"(\w+)"', words)) == WORDS[kind]
        return
    real = f"double  {kind}" in HEADER
    low, high, step = (float(low), float(high), 1e-9) if real else (int(low), int(high), 1)
    assert [accepts(check, value) for value in (low, high, low - step, high + step)] == [True, True, False, False]
    assert accepts(check, low + 0.5) == real


def test_limits_of_ids():
    found = dict(re.findall(r"LZ_MAX_(\w+) += (\d+);", SOURCE))
    assert found == {"EXEMPT": str(MAX_TOKEN_IDS), "SPECIAL": str(MAX_SPECIAL)}


def config_of(values, base):
    """Return the config that assignments in C++ describe."""
    changes = {}
    for name, text in values:
        field = "strength" if name == "penalty" else name
        value = float(text) if "." in text else int(text)
        optional = accepts(_CHECKS[field], None)
        if optional and value == -1:
            value = None
        elif field in WORDS:
            value = bool(value) if field == "include_prompt" else WORDS[field][value]
        changes[field] = value
    return replace(base, **changes)


def test_defaults():
    values = re.findall(r"^ +(?:double|int32_t) +(\w+) += (-?[\d.]+);", HEADER, re.M)
    config = config_of(values, LZPenaltyConfig(window_size=7))
    assert len(values) == len(fields(LZPenaltyConfig)) - 1  # the exempt ids are a vector, which is empty
    assert config.strength == 0  # off
    assert replace(config, strength=LZPenaltyConfig().strength) == LZPenaltyConfig()


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    begin = re.search(r"common_params_lz lz;\n(.*?)if", SOURCE, re.S)[1]
    block = re.search(rf'if \(name == "{name}"\) \{{\n(.*?)return lz;', SOURCE, re.S)[1]
    values = re.findall(r"lz\.(\w+) += (-?[\d.]+);", begin + block)
    assert config_of(values, LZPenaltyConfig()) == PRESETS[name]()
    assert f"'{name}'" in SOURCE


def test_the_patch_is_well_formed():
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    done = subprocess.run(["git", "apply", "--numstat", build.PATCH], capture_output=True, text=True, check=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert {name for *_, name in lines} == set(re.findall(r"^\+\+\+ b/(.*)$", PATCH, re.M))
    removed = sum(int(count) for _, count, _ in lines)
    assert removed <= 1  # it adds lines: one gets a comma


def test_all_headers_are_copied():
    for name in build.HEADERS:
        for included in re.findall(r'#include "(\w+\.h)"', (include_dir() / name).read_text()):
            assert included in build.HEADERS


def test_the_page_names_every_field():
    page = (build.HERE / "README.md").read_text()
    assert all(f"`{name}`" in page for name in REQUEST_FIELDS)
    assert build.COMMIT in page


def test_the_benchmark_uses_the_preset_of_the_header():
    """`tests/kernels/test_native.py` compares the header's preset with `LZPenaltyConfig`."""
    body = re.search(r"guarded\(int window\) \{(.*?)\n\}", (build.HERE / "bench.cpp").read_text(), re.S)[1]
    assert "settings = lz_penalty_guarded();" in body
    assert re.findall(r"settings\.(\w+) =", body) == ["window_size"]


def test_a_checkout_at_another_commit_is_refused(tmp_path):
    with pytest.raises(LZPenaltyError, match=f"must be at {build.COMMIT}"):
        build.export(tmp_path, tmp_path)


def test_a_checkout_at_the_commit_is_exported(tmp_path, monkeypatch):
    checkout, out = tmp_path / "checkout", tmp_path / "out"
    checkout.mkdir()
    out.mkdir()
    (checkout / "a.cpp").write_text("committed")
    name = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    for command in (["init", "--quiet"], ["add", "."], [*name, "commit", "--quiet", "--message", "a"]):
        subprocess.run(["git", "-C", checkout, *command], check=True)
    head = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    (checkout / "a.cpp").write_text("changed")
    monkeypatch.setattr(build, "COMMIT", head.stdout[:9])
    build.export(checkout, out)
    assert [path.name for path in out.iterdir()] == ["a.cpp"]
    assert (out / "a.cpp").read_text() == "committed"


def test_equal_files_are_left_alone(tmp_path):
    fresh, kept = tmp_path / "fresh", tmp_path / "kept"
    for folder, changed in ((fresh, "new"), (kept, "old")):
        (folder / "sub").mkdir(parents=True)
        (folder / "equal").write_text("equal")
        (folder / "sub" / "changed").write_text(changed)
    (kept / "gone").write_text("")
    os.utime(kept / "equal", (1, 1))
    build.update(fresh, kept)
    assert (kept / "equal").stat().st_mtime == 1
    assert (kept / "sub" / "changed").read_text() == "new"
    assert not (kept / "gone").exists()
