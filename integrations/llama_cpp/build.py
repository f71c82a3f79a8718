"""Build llama.cpp with the sampler `lz`: `python -m integrations.llama_cpp.build [--source CHECKOUT]`.

The source is the llama.cpp that llama-cpp-python's source package contains, at the version that requirements/llama-cpp.txt
pins. pip downloads it. `--source` takes a git checkout of llama.cpp instead, at the same commit. The patch, our C headers
and `lz.h`, `lz.cpp` are added to a copy in build/llama.cpp/source, so the checkout stays as it is. CMake builds
`llama-server`, `llama-cli` and `llama-completion` into build/llama.cpp/out/bin, in about 15 minutes on two cores; later
builds compile only what changed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lz_penalty.errors import LZPenaltyError
from lz_penalty.native import include_dir

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "build" / "llama.cpp"
SOURCE, OUT = WORK / "source", WORK / "out"
BIN = OUT / "bin"
PATCH = HERE / "lz-sampler.patch"
COMMIT = "0c1e57098"  # of ggml-org/llama.cpp, which calls itself 0.5.0-dev there
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"  # of llama-cpp-python's source package
TARGETS = ("llama-server", "llama-cli", "llama-completion")
HEADERS = ("lz_penalty.h", "lz_penalty_stream.h", "lz_penalty_llama.h")
OPTIONS = {  # no network at build time or later, no tests, no web pages
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_NUMBER": "0",
    "LLAMA_BUILD_COMMIT": COMMIT,
}
# git and CMake must not take the repository around the build folder for llama.cpp's own.
ENVIRONMENT = os.environ | {"GIT_CEILING_DIRECTORIES": str(WORK)}


def build(source: Path | None = None, jobs: int = 2) -> Path:
    """Build the programs and return their folder.

    Args:
        source: a git checkout of llama.cpp at `COMMIT`; `None` downloads llama-cpp-python's source package.
        jobs: how many files are compiled at the same time.
    """
    for program in ("cmake", "git"):
        if shutil.which(program) is None:
            raise LZPenaltyError(f"{program} is not on the PATH: install it, for example with pip install cmake ninja.")
    WORK.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        fresh = Path(folder) / "llama.cpp"
        fresh.mkdir()
        if source is None:
            unpack(download(), fresh)
        else:
            export(source, fresh)
        add_sampler(fresh)
        update(fresh, SOURCE)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    _run(["cmake", *generator, *(f"-D{name}={value}" for name, value in OPTIONS.items()), "-S", SOURCE, "-B", OUT])
    _run(["cmake", "--build", OUT, "-j", str(jobs), "--target", *TARGETS])
    return BIN


def pinned() -> str:
    """Return the version of llama-cpp-python whose llama.cpp is built."""
    text = (ROOT / "requirements" / "llama-cpp.txt").read_text(encoding="utf-8")
    found = re.search(r"^llama_cpp_python==(\S+)$", text, re.MULTILINE)
    assert found, "requirements/llama-cpp.txt pins llama_cpp_python"
    return found[1]


def download() -> Path:
    """Return llama-cpp-python's source package, which pip downloads once, after a check of its hash."""
    archive = WORK / f"llama_cpp_python-{pinned()}.tar.gz"
    if not archive.exists():
        wanted = ["--no-deps", "--no-binary", ":all:", f"llama-cpp-python=={pinned()}"]
        _run([sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--dest", WORK, *wanted])
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise LZPenaltyError(
            f"{archive} has the SHA-256 {found}: must be {SHA256}. Remove the file, and compare the pinned version in "
            "requirements/llama-cpp.txt with the one that the patch was made for."
        )
    return archive


def unpack(archive: Path, folder: Path) -> None:
    """Write the llama.cpp of a source package into a folder, after a check of its commit."""
    with tarfile.open(archive) as package:
        top = archive.name.removesuffix(".tar.gz")
        changes = package.extractfile(f"{top}/CHANGELOG.md")
        latest = changes.read().decode().split(f"## [{pinned()}]")[1].split("## [")[0] if changes else ""
        if f"llama.cpp@{COMMIT}" not in latest:
            raise LZPenaltyError(
                f"llama-cpp-python {pinned()} contains another llama.cpp than {COMMIT}: {latest.strip()}"
            )
        prefix = f"{top}/vendor/llama.cpp/"
        members = [
            one for one in package.getmembers() if one.name.startswith(prefix) and not one.name.endswith("/.git")
        ]
        for one in members:
            one.name = one.name.removeprefix(prefix)
        package.extractall(folder, members, filter="data")


def export(checkout: Path, folder: Path) -> None:
    """Write the files of a git checkout at `COMMIT` into a folder."""
    asked = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    head = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not head.startswith(COMMIT):
        raise LZPenaltyError(
            f"--source {checkout} is at {head or 'no commit'}: must be at {COMMIT}. git checkout {COMMIT}"
        )
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["git", "-C", str(checkout), "archive", "HEAD"], stdout=archive, check=True)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as files:
            files.extractall(folder, filter="data")


def add_sampler(tree: Path) -> None:
    """Apply the patch to a source tree, and add our headers and sources."""
    _run(["git", "apply", "--whitespace=nowarn", PATCH], cwd=tree)
    for name in ("lz.h", "lz.cpp"):
        shutil.copy(HERE / name, tree / "common" / name)
    (tree / "vendor" / "lz-penalty").mkdir()
    for name in HEADERS:
        shutil.copy(include_dir() / name, tree / "vendor" / "lz-penalty" / name)


def update(fresh: Path, kept: Path) -> None:
    """Make `kept` equal to `fresh`, and leave equal files alone: CMake compiles what is newer than its object file."""
    wanted = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
    for path in [path for path in kept.rglob("*") if path.is_file() and path.relative_to(kept) not in wanted]:
        path.unlink()
    for name in wanted:
        new, old = fresh / name, kept / name
        if not old.exists() or old.read_bytes() != new.read_bytes():
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(new, old)


def _run(command: Sequence[str | Path], cwd: Path | None = None) -> None:
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=ENVIRONMENT, check=False)
    if done.returncode:
        raise LZPenaltyError(f"{' '.join(str(part) for part in command[:4])} ... failed, see above.")


def main() -> None:
    """Build, and print where the programs are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help=f"a git checkout of llama.cpp at {COMMIT}")
    parser.add_argument("--jobs", type=int, default=2, help="files that are compiled at the same time (default: 2)")
    given = parser.parse_args()
    try:
        print(f"built: {', '.join(TARGETS)} in {build(given.source, given.jobs)}")
    except LZPenaltyError as error:
        sys.exit(f"build: {error}")


if __name__ == "__main__":
    main()
