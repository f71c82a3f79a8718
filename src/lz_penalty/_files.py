"""Safe access to users' files: check an output path early, write atomically, limit what is read.

Also checks whether other users could change a file before the library loads and runs it.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from lz_penalty.errors import LZPenaltyError

__all__ = [
    "check_output",
    "check_output_folder",
    "read_json",
    "read_text",
    "read_toml",
    "replacing",
    "why_others_may_change",
    "write_file",
]

Write = Callable[[str | bytes], Any]


def check_output(path: Path, option: str = "--out") -> bool:
    """Return whether a file at this path is written in place; raise, naming `option`, if it cannot be written at all."""
    status = _status(path, option)
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise LZPenaltyError(f"{option} {path}: is a folder; give a file.")
    in_place = status is not None and _is_written_in_place(path, status)
    if not in_place and not path.parent.is_dir():
        raise _cannot_write(path, option, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    _check_writable(path if in_place else path.parent, path, option)
    return in_place


def check_output_folder(path: Path, option: str = "--out") -> None:
    """Raise unless this is a folder that can be written to, or that can be created."""
    existing = path
    while (status := _status(existing, option)) is None:
        existing = existing.parent
    if not stat.S_ISDIR(status.st_mode):
        raise LZPenaltyError(f"{option} {path}: {existing} is a file; give a folder.")
    _check_writable(existing, path, option)


def _status(path: Path, option: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _cannot_write(path, option, error) from None


def _check_writable(existing: Path, path: Path, option: str) -> None:
    if not os.access(existing, os.W_OK | (os.X_OK if existing.is_dir() else 0)):
        read_only = os.statvfs(existing).f_flag & os.ST_RDONLY if hasattr(os, "statvfs") else 0
        code = errno.EROFS if read_only else errno.EACCES
        raise _cannot_write(path, option, OSError(code, os.strerror(code)))


def _cannot_write(path: Path, option: str, error: Exception) -> LZPenaltyError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return LZPenaltyError(f"{option} {path}: cannot be written ({reason}).")


def _is_written_in_place(path: Path, status: os.stat_result) -> bool:
    """Return whether the file cannot be replaced: a device, a pipe, or a file in a folder that cannot be written to."""
    if not stat.S_ISREG(status.st_mode):
        return True
    folder = os.path.realpath(path.parent)
    if folder == "/dev" or folder.startswith("/proc/"):  # /dev/stdout, /dev/fd/1: links to a file that is open already
        return True
    return not path.is_symlink() and not os.access(folder, os.W_OK | os.X_OK)


@contextmanager
def replacing(path: Path, option: str = "--out") -> Iterator[Write]:
    """Yield a function that writes text or bytes. The file is replaced at the end; after an error it is unchanged.

    The new file is written to the same folder under a name that nobody can guess, and then renamed. A link is
    replaced and never followed. A device or a pipe is written to directly, and so is a file in a folder that cannot be
    written to.
    """
    direct = check_output(path, option)
    part = path if direct else path.with_name(f".{secrets.token_hex(8)}.part")
    with _named_errors(path, option):
        file = _create(part, path) if not direct else open(path, "wb")  # noqa: SIM115  closed below

    def write(data: str | bytes) -> None:
        with _named_errors(path, option):
            file.write(data.encode() if isinstance(data, str) else data)

    try:
        yield write
        with _named_errors(path, option):
            file.close()
            if not direct:
                _put_in_place(part, path)
    finally:
        with suppress(OSError):  # it was raised above
            file.close()
        if not direct:
            part.unlink(missing_ok=True)


def _put_in_place(part: Path, path: Path) -> None:
    try:
        os.replace(part, path)
    except OSError as error:
        if error.errno != errno.EBUSY:  # a file mounted into a container can be written, but not replaced
            raise
        shutil.copyfile(part, path)


def _create(part: Path, target: Path) -> IO[bytes]:
    """Create a file with the usual permissions, or with those of the file that it will replace."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(part, flags, 0o666)
    if target.is_file() and not target.is_symlink() and hasattr(os, "fchmod"):
        os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
    return os.fdopen(descriptor, "wb")


@contextmanager
def _named_errors(path: Path, option: str) -> Iterator[None]:
    """Turn an error of the operating system into one line that names the path."""
    try:
        yield
    except OSError as error:
        raise _cannot_write(path, option, error) from None


def write_file(path: Path, data: str | bytes, option: str = "--out") -> None:
    """Write a whole file, or leave it unchanged after an error."""
    with replacing(path, option) as write:
        write(data)


def read_text(path: Path, most: int) -> str:
    """Return a file of at most `most` bytes as UTF-8 text.

    Raises:
        OSError, UnicodeDecodeError: the file cannot be read.
        LZPenaltyError: the file is larger.
    """
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise LZPenaltyError(f"{path}: longer than {most:,} bytes; give a shorter file.")
    return data.decode("utf-8")


def read_json(path: Path, most: int, option: str = "") -> Any:
    """Return the content of a JSON file of at most `most` bytes; raise, naming `option`, if it cannot be read."""
    return _parsed(path, most, option, "JSON", json.loads)


def read_toml(path: Path, most: int, option: str) -> dict[str, Any]:
    """Return the content of a TOML file of at most `most` bytes; raise, naming `option`, if it cannot be read."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return _parsed(path, most, option, "TOML", tomllib.loads)


def _parsed(path: Path, most: int, option: str, form: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(read_text(path, most))
    except LZPenaltyError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise LZPenaltyError(f"{option} {path}: cannot be read as {form} ({error}).".strip()) from None


def why_others_may_change(path: Path) -> str | None:
    """Return why another user could replace the file or folder at this path; `None` if only root and this user can.

    Every folder above it is checked too: a user who can write to a folder can replace its content. In a folder with
    the sticky bit, such as /tmp, only the owner of a file can do that. The path must be absolute and resolved, so that no
    folder above it is a link.
    """
    for part in (path, *path.parents):
        status = part.lstat()
        if stat.S_ISLNK(status.st_mode):
            return f"{part} is a link"
        owners = {os.geteuid()} if part == path else {os.geteuid(), 0}
        sticky = part != path and status.st_mode & stat.S_ISVTX
        writable = status.st_mode & 0o002 or (status.st_mode & 0o020 and _has_others(status.st_gid))
        if status.st_uid not in owners or (writable and not sticky):
            mode = stat.S_IMODE(status.st_mode)
            return f"{part} belongs to another user or can be written by others (owner {status.st_uid}, mode {mode:o})"
    return None


def _has_others(group_id: int) -> bool:
    """Return whether a group may have other members. Many systems give each user a private group of the same name."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except KeyError:
        return True
    if group_id == 0 or group.gr_name != user.pw_name or not {user.pw_name}.issuperset(group.gr_mem):
        return True  # containers run as any user in group 0
    return any(one.pw_gid == group_id and one.pw_uid != user.pw_uid for one in pwd.getpwall())
