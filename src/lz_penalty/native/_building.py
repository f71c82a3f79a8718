"""Compile C sources with the system compiler into a cache of the user. Files that other users can change are never loaded."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lz_penalty._files import why_others_may_change
from lz_penalty.errors import BackendUnavailableError, show

__all__ = ["CACHE_VARIABLE", "build", "load"]

CACHE_VARIABLE = "LZ_PENALTY_CACHE"
_FLAGS = ("-std=c99", "-O2", "-fPIC", "-shared")
_SECONDS = 120
_LOADS = itertools.count()


def load(source: str, folder: Path, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Build a library, load it and return it; as `ctypes.PyDLL` if its functions need the interpreter's lock.

    Raises:
        BackendUnavailableError: as in `build`, or the library cannot be loaded, as on a file system without programs.
    """
    path = build(source, folder)
    try:
        with _checked(path) as name:
            return kind(name)
    except OSError as error:
        raise BackendUnavailableError(
            f"{path} cannot be loaded ({error}): remove it, or set {CACHE_VARIABLE} to a folder from which programs may run."
        ) from error


@contextmanager
def _checked(path: Path) -> Iterator[str]:
    """Yield a name of the library that nobody else can give to another file between the check and the load.

    On Linux the name goes through an open descriptor of the cache's folder. That folder was checked, and the descriptor
    refers to it whatever happens to its path. The loader takes equal names for equal libraries, and descriptors get the
    same numbers again, so a different number of "./" makes every name unique. On other systems the name is the path:
    `build` has refused parent folders that others can write to.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for about in (os.fstat(descriptor), os.stat(path.name, dir_fd=descriptor, follow_symlinks=False)):
            if about.st_uid != os.geteuid() or about.st_mode & 0o022 or stat.S_ISLNK(about.st_mode):
                raise BackendUnavailableError(f"{path} was changed by another user: set {CACHE_VARIABLE}.")
        name = f"/proc/self/fd/{descriptor}/{'./' * next(_LOADS)}{path.name}"
        yield name if os.path.exists(name) else str(path)
    finally:
        os.close(descriptor)


def build(source: str, folder: Path) -> Path:
    """Compile `folder/source` into a shared library, unless the cache contains it, and return its path.

    The cache's key is the content of all sources and headers in the folder, the flags, the compiler and the machine.
    The environment variable CC names the compiler (default: cc, gcc or clang), LZ_PENALTY_CACHE the cache's folder.

    Raises:
        BackendUnavailableError: there is no compiler, or it fails, or somebody else may write to the cache.
    """
    if os.name != "posix":
        raise BackendUnavailableError(f"compiling on demand is for Linux and macOS; this is {platform.system()}.")
    compiler = _compiler()
    key = hashlib.sha256(repr((source, _FLAGS, compiler, platform.machine(), platform.system())).encode())
    for file in sorted(folder.glob("*.[ch]")):
        key.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    cache = _cache()
    target = cache / f"{Path(source).stem}-{key.hexdigest()[:32]}.so"
    if not os.path.lexists(target):
        _compile(compiler, folder / source, target)
    _refuse_unless_ours(target)
    return target


def _compiler() -> list[str]:
    """Return the compiler's command. It begins with a full path, so that the cache's key names the compiler."""
    given = os.environ.get("CC")
    for name in [given] if given else ["cc", "gcc", "clang"]:
        try:
            command = shlex.split(name)
        except ValueError as error:  # an open quote
            raise BackendUnavailableError(
                f"CC = {show(given)} is no command ({error}): set CC to a compiler."
            ) from None
        path = shutil.which(command[0]) if command else None
        if path:
            return [path, *command[1:]]
    asked = f"CC = {show(given)} was not found" if given else "neither cc, gcc nor clang was found"
    raise BackendUnavailableError(
        f"{asked}: install a C compiler (Debian: apt install gcc, macOS: xcode-select --install) or set CC to one."
    )


def _cache() -> Path:
    """Create the cache's folder if necessary and return it; raise if anybody else can write to it or replace it."""
    given = os.environ.get(CACHE_VARIABLE)
    try:
        cache = Path(given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "lz-penalty"))
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not cache.is_symlink():  # refused below
            cache = cache.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # the latter if the user has no home
        raise BackendUnavailableError(
            f"the cache cannot be made ({error}): set {CACHE_VARIABLE} to a folder."
        ) from error
    _refuse_unless_ours(cache)
    return cache


def _refuse_unless_ours(path: Path) -> None:
    """Raise if another user may change the file or folder at this path: its code would be loaded and run."""
    try:
        reason = why_others_may_change(path)
    except OSError as error:
        reason = f"{path} cannot be looked at ({error})"
    if reason:
        raise BackendUnavailableError(
            f"{reason}: make it yours alone (chmod go-w), or set {CACHE_VARIABLE} to a folder of your own."
        )


def _compile(compiler: list[str], source: Path, target: Path) -> None:
    """Compile into another file of the folder and rename it: other processes see the whole target or none."""
    name = ""
    try:
        descriptor, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
        os.close(descriptor)
        command = [*compiler, *_FLAGS, str(source), "-o", name, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit code {done.returncode}"]
            raise BackendUnavailableError(f"{' '.join(compiler)} could not compile {source.name}: {errors[0]}")
        os.chmod(name, 0o700)
        os.replace(name, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendUnavailableError(f"{' '.join(compiler)} could not compile {source.name}: {error}") from error
    finally:
        if name:
            Path(name).unlink(missing_ok=True)
