"""Check what `make dist` built, and the wheel in an empty environment: `python -m tests.support.check_dist DIST WHEELS`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

from tests.support import ROOT

MAX_BYTES = 25_000_000


def contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}


def check_wheel(wheel: Path, from_tree: Path) -> None:
    """Its size, files and metadata; the one made from the sdist is the one made from the tree."""
    files = contents(wheel)
    assert wheel.stat().st_size < MAX_BYTES, f"{wheel.name} has {wheel.stat().st_size:,} bytes"
    assert files == contents(from_tree), set(files.items()) ^ set(contents(from_tree).items())
    for name in (
        "py.typed",
        "native/lz_penalty.h",
        "native/lz_penalty_stream.h",
        "evaluation/study/sweeps/paper.toml",
        "bundled_model/model/model.safetensors",
    ):
        assert f"lz_penalty/{name}" in files, name
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in files if name.endswith(".dist-info/METADATA"))
        about = Metadata.from_email(archive.read(name), validate=True)
    assert about.license_expression == "Apache-2.0"
    assert about.license_files == ["LICENSE"]
    assert about.description_content_type == "text/markdown"
    assert (about.description or "").startswith("# lz-penalty")


def check_installed(wheel: Path) -> None:
    """The command line in an environment that holds nothing but the wheel and what it needs."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        binary = Path(folder, "bin")
        pip = [binary / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--constraint", ROOT / "requirements/main.txt", wheel], check=True)

        def run(*command: str | Path) -> str:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        doctor = json.loads(run(binary / "lz-penalty", "doctor", "--json"))
        assert doctor["backend numpy"] == "usable"
        assert doctor["engine transformers"] == "transformers is not installed: pip install 'lz-penalty[transformers]'"
        looping = Path(folder, "looping.txt")
        looping.write_text("Let me think about it once more. " * 40)
        found = json.loads(run(binary / "lz-penalty", "detect", looping, "--json"))
        assert found["documents"] == 1, found
        print(run(binary / "lz-penalty", "doctor"))


def main(built: str, from_tree: str) -> None:
    (wheel,), (_,), (other,) = Path(built).glob("*.whl"), Path(built).glob("*.tar.gz"), Path(from_tree).glob("*.whl")
    check_wheel(wheel, other)
    check_installed(wheel)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, the same from the sdist and from the tree")


if __name__ == "__main__":
    main(*sys.argv[1:])
