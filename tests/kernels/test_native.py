"""The C header equals the reference, through ctypes; its build is safe; sanitizers find nothing."""

import ctypes
import grp
import logging
import os
import pwd
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings

from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty import _files as files
from lz_penalty.errors import BackendUnavailableError
from lz_penalty.native import NativePenalty, _library, include_dir, native_settings
from lz_penalty.native import _building as building
from tests.kernels.test_equivalence import WRONG, sizes
from tests.support import ROOT, cases, quick_or_deep
from tests.support.native_op import disagreement
from tests.support.settings import UNGATED

FUZZ = ROOT / "tests" / "support" / "native_fuzz.c"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(building.CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


@settings(max_examples=quick_or_deep(150, 500))
@given(**sizes)
def test_header_equals_the_reference(seed, **size):
    case = cases.case(seed, dtypes=("float32",), **size)
    problem = disagreement(case)
    assert problem is None, f"{problem}\n{case}"


@pytest.mark.parametrize("seed", range(4))
def test_at_the_sizes_people_use(seed):
    problem = disagreement(cases.case(seed, rows=4, length=1500, window=600, buffer=40, dtypes=("float32",)))
    assert problem is None, problem


@pytest.mark.parametrize("name", ["window off by one", "ignores exempt ids", "loop window off by one"])
def test_the_check_can_fail(name):
    wrong = WRONG[name]
    problems = (
        disagreement(
            cases.case(seed, rows=4, dtypes=("float32",)),
            lambda *, config, backend, **given: wrong(config=config, backend="numpy", **given),
        )
        for seed in range(300)
    )
    assert any(problems)


def test_the_preset_in_the_header(tmp_path):
    program, source = tmp_path / "preset", tmp_path / "preset.c"
    source.write_text(
        '#include <stdio.h>\n#include "lz_penalty.h"\nint main(void) {\n'
        "lz_penalty_settings s = lz_penalty_guarded();\nreturn !fwrite(&s, sizeof s, 1, stdout); }\n"
    )
    subprocess.run(["cc", f"-I{include_dir()}", str(source), "-o", str(program), "-lm"], check=True)
    made = subprocess.run([str(program)], capture_output=True, check=True).stdout
    wanted = native_settings(LZPenaltyConfig.guarded())
    found = type(wanted).from_buffer_copy(made)
    for name, _ in wanted._fields_:
        if name != "exempt_ids":
            assert getattr(found, name) == getattr(wanted, name), name
    assert not found.exempt_ids


def test_long_window():
    """At 32,768 tokens, where only the fast backends can follow."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 3000, 40_000).astype(np.int32)
    tokens[-900:] = np.tile(tokens[:300], 3)
    for config in (
        LZPenaltyConfig(window_size=32_768, escalation=1.0),
        LZPenaltyConfig.guarded(window_size=32_768, loop_window=32_768, include_prompt=True),
        replace(UNGATED, window_size=32_768, loop_window=32_768),
        LZPenaltyConfig.sglang(window_size=32_768, include_prompt=True),
    ):
        got = rng.standard_normal(4000).astype(np.float32)
        want = got.astype(np.float64)[None]
        cases.apply_lz_penalty_(want, tokens[None], config=config, backend="numpy")
        NativePenalty(config).apply_(got, tokens)
        np.testing.assert_allclose(got, want[0], rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- malformed settings and arguments

MALFORMED = {
    "strength": (-1.0, 101.0, float("nan"), float("inf")),
    "escalation": (-0.1, 100.5, float("nan")),
    "formula": (-1, 2),
    "lookback": (-1, 2),
    "window_size": (0, -5, 65_537, 2**31 - 1),
    "buffer_size": (0, 4097, -(2**31)),
    "min_match_length": (-1, 34, 2**31 - 1),
    "loop_window": (0, 65_537),
    "exempt_count": (-1, 2048),
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, all_ in MALFORMED.items() for value in all_])
def test_malformed_settings_have_a_code(field, value):
    library, given = _library(), native_settings(LZPenaltyConfig())
    setattr(given, field, value)
    code = library.lz_penalty_check(given)
    assert code > 0
    assert library.lz_penalty_size(given) == 0
    assert library.lz_penalty_init(0, 0, given, 0) == code
    assert field.removesuffix("_count").encode() in library.lz_penalty_error(code)


def test_exempt_ids_must_ascend():
    for ids in ((3, 2), (2, 2), (-1, 2)):
        given = native_settings(LZPenaltyConfig(exempt_token_ids=(2, 3)))
        given.exempt_ids[0], given.exempt_ids[1] = ids
        assert _library().lz_penalty_check(given) > 0


@pytest.mark.parametrize(
    ("logits", "tokens", "vocab_size"),
    [
        (np.zeros(4, np.float64), np.zeros(3, np.int32), None),
        (np.zeros((2, 4), np.float32), np.zeros(3, np.int32), None),
        (np.zeros(4, np.float32), np.zeros(3, np.int64), None),
        (np.zeros(4, np.float32), np.zeros(6, np.int32)[::2], None),
        (np.zeros(4, np.float32), np.zeros(3, np.int32), 5),
        (np.zeros(4, np.float32), np.zeros(3, np.int32), 0),
        (np.zeros(4, np.float32)[::-1], np.zeros(3, np.int32), None),
        (np.broadcast_to(np.float32(0), 4), np.zeros(3, np.int32), None),
    ],
)
def test_bad_arrays_are_refused(logits, tokens, vocab_size):
    with pytest.raises(LZPenaltyError, match="must be"):
        NativePenalty(LZPenaltyConfig()).apply_(logits, tokens, vocab_size)


# ---------------------------------------------------------------- the build


def test_second_build_is_taken_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "c"))
    first = building.build("library.c", include_dir())
    monkeypatch.setattr(building, "_compile", None)
    assert building.build("library.c", include_dir()) == first
    assert [path.name for path in (tmp_path / "c").iterdir()] == [first.name]
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700


def test_other_content_has_another_key(tmp_path, monkeypatch):
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "c"))
    (tmp_path / "one.c").write_text("int one(void) { return 1; }\n")
    first = building.build("one.c", tmp_path)
    (tmp_path / "one.c").write_text("int one(void) { return 2; }\n")
    assert building.build("one.c", tmp_path) != first


def test_a_cache_that_others_can_write_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_has_others", lambda group: True)
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "c"))
    library = building.build("library.c", include_dir())
    for path in (library, tmp_path / "c"):
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        with pytest.raises(BackendUnavailableError, match="can be written by others"):
            building.build("library.c", include_dir())
        path.chmod(mode)
    (tmp_path / "link").symlink_to(tmp_path / "c")
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "link"))
    with pytest.raises(BackendUnavailableError, match="is a link"):
        building.build("library.c", include_dir())


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_cache_in_a_folder_that_others_can_write_is_refused(tmp_path, monkeypatch, mode):
    """A user who can write to a folder above the cache can put another library in its place."""
    monkeypatch.setattr(files, "_has_others", lambda group: True)
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "shared" / "mine" / "c"))
    library = building.build("library.c", include_dir())
    (tmp_path / "shared").chmod(mode)
    with pytest.raises(BackendUnavailableError, match=r"shared belongs .* can be written by others .*chmod go-w"):
        building.build("library.c", include_dir())
    (tmp_path / "shared").chmod(mode | 0o1000)  # sticky, as /tmp
    assert building.build("library.c", include_dir()) == library


def test_a_group_of_the_user_alone_may_write(tmp_path, monkeypatch):
    """Systems that give each user such a group make folders that it can write."""
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "home" / "c"))
    library = building.build("library.c", include_dir())
    (tmp_path / "home").chmod(0o775)
    alone = SimpleNamespace(gr_name="ann", gr_mem=["ann"])
    ann, bob = (SimpleNamespace(pw_name=name, pw_uid=uid, pw_gid=77) for name, uid in (("ann", 7), ("bob", 8)))
    monkeypatch.setattr(files, "_has_others", lambda group, asked=files._has_others: asked(77))
    monkeypatch.setattr(pwd, "getpwuid", lambda user: ann)
    monkeypatch.setattr(pwd, "getpwall", lambda: [ann])
    monkeypatch.setattr(grp, "getgrgid", lambda group: alone)
    assert building.build("library.c", include_dir()) == library
    for others in ({"gr_mem": ["ann", "bob"]}, {"gr_name": "staff"}):
        monkeypatch.setattr(grp, "getgrgid", lambda group, others=others: SimpleNamespace(**vars(alone) | others))
        with pytest.raises(BackendUnavailableError, match=r"home belongs .* can be written by others"):
            building.build("library.c", include_dir())
    monkeypatch.setattr(grp, "getgrgid", lambda group: alone)
    monkeypatch.setattr(pwd, "getpwall", lambda: [ann, bob])  # whose own group it is too, without being listed in it
    with pytest.raises(BackendUnavailableError, match="can be written by others"):
        building.build("library.c", include_dir())


def test_others_may_be_in_group_0():
    assert files._has_others(0)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_a_cache_in_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "theirs" / "c"))
    building.build("library.c", include_dir())
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(BackendUnavailableError, match="theirs belongs to another user"):
        building.build("library.c", include_dir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs names for descriptors")
def test_what_was_checked_is_loaded(tmp_path, monkeypatch):
    """A folder that replaces the cache after the check is not used."""
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "c"))
    (tmp_path / "one.c").write_text("int one(void) { return 1; }\n")
    library = building.build("one.c", tmp_path)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "one.c").write_text("int one(void) { return 666; }\n")
    other = building.build("one.c", tmp_path / "two").read_bytes()

    def swap_and_load(name):
        (tmp_path / "c").rename(tmp_path / "old")
        (tmp_path / "c").mkdir()
        library.write_bytes(other)
        return ctypes.CDLL(name)

    assert building.load("one.c", tmp_path, swap_and_load).one() == 1


def test_libraries_are_told_apart(tmp_path, monkeypatch):
    """The loader knows libraries by their names, and the numbers of descriptors are used again."""
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "c"))
    for number in range(3):
        (tmp_path / "number.c").write_text(f"int number(void) {{ return {number}; }}\n")
        assert building.load("number.c", tmp_path).number() == number


def test_what_does_not_compile_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "c"))
    (tmp_path / "bad.c").write_text("int one(void) { return\n")
    with pytest.raises(BackendUnavailableError, match=r"could not compile bad.c: .*error"):
        building.build("bad.c", tmp_path)
    assert not list((tmp_path / "c").iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"CC": "no-such-compiler"}, "found: install a C compiler"),
        ({"PATH": "/nowhere"}, "found: install a C compiler"),
        ({"CC": 'gcc "-O2'}, "is no command (No closing quotation): set CC to a compiler"),
        ({"CC": "gcc \\"}, "is no command (No escaped character): set CC to a compiler"),
        ({"CC": " "}, "found: install a C compiler"),
    ],
)
def test_without_a_compiler_there_is_a_message_and_none(changes, message, tmp_path):
    code = (
        "import logging; logging.basicConfig()\n"
        "from lz_penalty import LZPenaltyConfig\n"
        "from lz_penalty.native import NativePenalty\n"
        "assert NativePenalty.load(LZPenaltyConfig()) is None\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "CC"}
    environment |= {building.CACHE_VARIABLE: str(tmp_path)} | changes
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert message in done.stderr


def test_a_library_that_cannot_be_loaded_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path))
    building.build("library.c", include_dir()).write_bytes(b"not a library")
    with pytest.raises(BackendUnavailableError, match=r"cannot be loaded \(.*\): remove it, or set LZ_PENALTY_CACHE"):
        building.load("library.c", include_dir())


def test_a_cache_that_cannot_be_made_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(BackendUnavailableError, match=r"the cache cannot be made \(.*\): set LZ_PENALTY_CACHE"):
        building.build("library.c", include_dir())

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(building.CACHE_VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(BackendUnavailableError, match="Could not determine home directory"):
        building.build("library.c", include_dir())


def test_only_where_compilers_are_as_expected(monkeypatch):
    monkeypatch.setattr(building, "os", type("os", (), {"name": "nt"}))
    with pytest.raises(BackendUnavailableError, match="for Linux and macOS"):
        building.build("library.c", include_dir())


def test_loading_says_nothing_where_it_works(caplog):
    with caplog.at_level(logging.WARNING):
        assert NativePenalty.load(LZPenaltyConfig()) is not None
    assert not caplog.records


# ---------------------------------------------------------------- sanitizers


def test_sanitizers_find_nothing(tmp_path):
    """The harness of `make fuzz-native`, with fewer cases."""
    program = tmp_path / "fuzz"
    flags = ["-std=c99", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=all", f"-I{include_dir()}"]
    subprocess.run(["cc", *flags, str(FUZZ), "-o", str(program), "-lm"], check=True)
    done = subprocess.run([str(program), "20000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "20000 cases" in done.stdout
