"""The op and the commands where nothing can be written: a read-only container without a home, and a full disk."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lz_penalty
from tests.support import commands, quick_or_deep
from tests.support.documents import LOOP

PACKAGE = Path(lz_penalty.__file__).parent
NOWHERE = "/proc/nowhere"  # a folder that nobody can make, root neither
PENALTY = """
import numpy as np
from lz_penalty import LZPenaltyConfig, apply_lz_penalty_
logits, tokens = np.ones((1, 10), np.float32), np.array([[1, 2, 3] * 20])
given = {"config": LZPenaltyConfig.guarded(), "starts": np.array([0])}
apply_lz_penalty_(logits, tokens, **given, backend="numba")
truth = np.ones((1, 10), np.float64)
apply_lz_penalty_(truth, tokens, **given, backend="numpy")
assert np.allclose(logits, truth) and logits[0, 1] < 1
"""
DETECTOR = """
from lz_penalty.detection import find_repetition
assert find_repetition("abc" * 100).period == 3
"""
OP = PENALTY + DETECTOR  # Numba compiles the penalty in 3 seconds and the detector in 2, the same way


@pytest.fixture
def source(tmp_path):
    """A copy of the package with files in place of its cache folders, so that nothing can be cached there."""

    def link(file, copy):
        os.symlink(os.path.abspath(file), copy)

    shutil.copytree(
        PACKAGE, tmp_path / "src" / "lz_penalty", copy_function=link, ignore=shutil.ignore_patterns("__pycache__")
    )
    for folder in ("kernels", "detection"):
        (tmp_path / "src" / "lz_penalty" / folder / "__pycache__").touch()
    return tmp_path / "src"


def environment(source, **changes) -> dict[str, str]:
    removed = ("NUMBA_CACHE_DIR", "LZ_PENALTY_CACHE", "XDG_CACHE_HOME", "XDG_DATA_HOME", "CC")
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    fast = {} if "NUMBA_CACHE_DIR" in changes else {"NUMBA_OPT": "0"}  # code that is not optimised cannot be cached
    return kept | fast | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "HOME": NOWHERE} | changes


def run(source, *arguments, full: bool = False, cwd=None, **changes) -> subprocess.CompletedProcess:
    """Run Python without a home. With `full`, no file can get a single byte, as on a full disk."""
    limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))) if full else None
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment(source, **changes),
        cwd=cwd,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_op_runs_without_a_place_for_a_cache(source):
    done = run(source, "-c", OP)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Numba's cache cannot be used") == 1
    assert "Set NUMBA_CACHE_DIR" in done.stderr


def test_the_op_runs_on_a_full_disk(source, tmp_path):
    """Numba can make a folder and empty files on a full disk, and fails when it writes."""
    done = run(source, "-c", quick_or_deep(DETECTOR, OP), full=True, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Numba's cache cannot be used (OSError: [Errno 27] File too large)") == 1


def test_the_cache_is_used_where_it_can_be_and_a_broken_one_is_not(source, tmp_path):
    given = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    code = quick_or_deep(DETECTOR, OP)
    hits = "from lz_penalty.detection import _runs\nassert sum(_runs._find_runs.stats.cache_hits.values()) == {}"
    for expected in (0, 1):
        done = run(source, "-c", code + hits.format(expected), **given)
        assert (done.returncode, done.stderr) == (0, "")
    for file in (tmp_path / "cache").rglob("*.nbi"):
        file.write_bytes(b"broken")
    done = run(source, "-c", code, **given)
    assert done.returncode == 0, done.stderr
    assert "Numba's cache cannot be used" in done.stderr


def test_a_cache_of_others_is_not_used(source, tmp_path):
    """Numba runs the code that it finds in its cache."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    done = run(source, "-c", quick_or_deep(DETECTOR, OP), NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert "can be written by others" in done.stderr
    assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]


def test_without_a_home_nothing_is_put_into_the_working_folder(source, tmp_path):
    """The user id has no name. Then Python leaves `~` as it is, and Numba makes a folder of that name."""
    (tmp_path / "cwd").mkdir()
    code = quick_or_deep(DETECTOR, OP)
    done = run(source, "-c", f"import os.path; os.path.expanduser = str\n{code}", cwd=tmp_path / "cwd")
    assert done.returncode == 0, done.stderr
    assert "this user has no home" in done.stderr
    assert not list((tmp_path / "cwd").iterdir())


def test_detect_runs_without_a_place_for_a_cache(source, tmp_path):
    (tmp_path / "loop.txt").write_text(LOOP)
    for workers in quick_or_deep("2", "12"):
        done = run(source, "-m", "lz_penalty", "detect", tmp_path / "loop.txt", "--json", "--workers", workers)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["flagged"] == 1


COMMANDS = {
    "detect": ("detect", "{folder}/loop.txt", "--out", "{folder}/out"),
    "demo": ("demo", "--model", "bundled", "--tokens", "1", "--svg", "{folder}/out"),
    "explain": ("explain", "a b a b", "--html", "{folder}/out"),
    "cost": ("cost", "none", "--texts", "1", "--tasks", "1", "--out", "{folder}/out"),
    "duality": ("duality", "--passages", "1", "--characters", "50", "--penalty", "paper", "--out", "{folder}/out"),
    "report": ("report", "research/studies/small", "--from-tables", "--out", "{folder}/out"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_on_a_full_disk_is_one_line(tmp_path, name):
    (tmp_path / "loop.txt").write_text(LOOP)
    arguments = [argument.format(folder=tmp_path) for argument in COMMANDS[name]]
    done = commands.run(*arguments, full=True)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("lz-penalty: --")
    assert last.endswith("cannot be written (File too large).")
    assert [file.name for file in tmp_path.rglob("*.part")] == []
    assert not (tmp_path / "out").is_file()


# ---------------------------------------------------------------- a real container, if bubblewrap can make one

BOX = (
    "bwrap",
    "--unshare-user",
    "--uid",
    "12345",
    "--gid",
    "12345",
    "--ro-bind",
    "/",
    "/",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
)
BOX += ("--clearenv", "--setenv", "PATH", "/nowhere", "--setenv", "PYTHONDONTWRITEBYTECODE", "1", "--chdir", "/")
BOX += ("--setenv", "NUMBA_OPT", "0")
NO_HOME, NO_SUCH_HOME = (), ("--setenv", "HOME", "/nowhere")
IN_A_BOX = {
    "op": ("-c", OP),
    "help": ("-m", "lz_penalty", "--help"),
    "doctor": ("-m", "lz_penalty", "doctor"),
    "detect": ("-m", "lz_penalty", "detect", f"{PACKAGE}/ops.py"),
    "generate": ("-m", "lz_penalty", "generate", "Hello", "-n", "2"),
    "explain": ("-m", "lz_penalty", "explain", "the cat the cat"),
    "cost": ("-m", "lz_penalty", "cost", "paper", "--texts", "1", "--tasks", "1"),
}
# The last test runs `detect`. `explain` imports torch and transformers as `generate` does, and needs half the time.
EACH_ONCE = [("help", NO_HOME), ("doctor", NO_SUCH_HOME), ("explain", NO_HOME)]
ALL_PAIRS = [(name, home) for name in IN_A_BOX for home in (NO_HOME, NO_SUCH_HOME)]


def boxes() -> bool:
    try:
        return subprocess.run([*BOX, sys.executable, "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not boxes(), reason="bubblewrap cannot make a container here")
@pytest.mark.parametrize(("name", "home"), quick_or_deep(EACH_ONCE, ALL_PAIRS))
def test_in_a_read_only_container(name, home):
    """Every file is read-only, also in /tmp. The user has no name and no compiler."""
    given = ("--setenv", "PYTHONPATH", str(PACKAGE.parent), *home)
    done = subprocess.run([*BOX, *given, sys.executable, *IN_A_BOX[name]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not boxes(), reason="bubblewrap cannot make a container here")
def test_where_nothing_at_all_can_be_written():
    """torch makes a folder when it is imported in full; `detect` needs none."""
    given = ("--remount-ro", "/dev", "--setenv", "PYTHONPATH", str(PACKAGE.parent))
    for arguments, code in ((["detect", f"{PACKAGE}/ops.py"], 0), (["explain", "the cat the cat"], 2)):
        command = [*BOX, *given, sys.executable, "-m", "lz_penalty", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert "mount one at /tmp, or set TMPDIR" in done.stderr
