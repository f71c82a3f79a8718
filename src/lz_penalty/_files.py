"""Files of users: check an output path before any work, write it whole or not at all, read no more than a limit.

Also: who else may change a file, for what is loaded and run.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from lz_penalty.errors import LZPenaltyError

__all__ = ["check_output", "check_output_folder", "read_text", "replacing", "why_others_may_change", "write_file"]

Write = Callable[[str | bytes], Any]


def check_output(path: Path, option: str = "--out") -> None:
    """Raise unless a file can be written here; `option` names the path in the message."""
    about = _about(path, option)
    if about is not None and stat.S_ISDIR(about.st_mode):
        raise LZPenaltyError(f"{option} {path}: is a folder; give a file.")
    if about is not None and _is_written_in_place(path, about):
        _check_writable(path, path, option)
    elif not path.parent.is_dir():
        raise _cannot_write(path, option, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    else:
        _check_writable(path.parent, path, option)


def check_output_folder(path: Path, option: str = "--out") -> None:
    """Raise unless this is a folder that can be written to, or one that can be made."""
    place = path
    while (about := _about(place, option)) is None:
        place = place.parent
    if not stat.S_ISDIR(about.st_mode):
        raise LZPenaltyError(f"{option} {path}: {place} is a file; give a folder.")
    _check_writable(place, path, option)


def _about(path: Path, option: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _cannot_write(path, option, error) from None


def _check_writable(place: Path, path: Path, option: str) -> None:
    if not os.access(place, os.W_OK | (os.X_OK if place.is_dir() else 0)):
        read_only = os.statvfs(place).f_flag & os.ST_RDONLY if hasattr(os, "statvfs") else 0
        code = errno.EROFS if read_only else errno.EACCES
        raise _cannot_write(path, option, OSError(code, os.strerror(code)))


def _cannot_write(path: Path, option: str, error: Exception) -> LZPenaltyError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return LZPenaltyError(f"{option} {path}: cannot be written ({reason}).")


def _is_written_in_place(path: Path, about: os.stat_result) -> bool:
    """Whether the file at this path cannot be replaced: a device or pipe, a name of the system's, or a folder of others."""
    if not stat.S_ISREG(about.st_mode):
        return True
    folder = os.path.realpath(path.parent)
    if folder == "/dev" or folder.startswith(
        "/proc/"
    ):  # /dev/stdout, /dev/fd/1: links to a file that somebody else opened
        return True
    return not path.is_symlink() and not os.access(folder, os.W_OK | os.X_OK)


@contextmanager
def replacing(path: Path, option: str = "--out") -> Iterator[Write]:
    """A function that writes text or bytes; at the end they are the file, and after an error the file is as before.

    The new file is written beside the old one, under a name that nobody can guess, and takes its place. A link is
    replaced and never followed. A device or a pipe is written to directly, and so is a file in a folder that cannot be
    written to.
    """
    check_output(path, option)
    about = _about(path, option)
    direct = about is not None and _is_written_in_place(path, about)
    part = path if direct else path.with_name(f".{secrets.token_hex(8)}.part")
    with _told(path, option):
        file = _created(part, path) if not direct else open(path, "wb")  # noqa: SIM115  closed below
    try:
        yield _writer(file, path, option)
        with _told(path, option):
            file.close()
            if not direct:
                _put_in_place(part, path)
    finally:
        with suppress(OSError):  # what could not be written was told above
            file.close()
        if not direct:
            part.unlink(missing_ok=True)


def _put_in_place(part: Path, path: Path) -> None:
    try:
        os.replace(part, path)
    except OSError as error:
        if error.errno != errno.EBUSY:  # a file that a container has mounted: it can be written, but not replaced
            raise
        shutil.copyfile(part, path)


def _created(part: Path, target: Path) -> IO[bytes]:
    """A new file with the usual permissions, or with those of the file that it will replace."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(part, flags, 0o666)
    if target.is_file() and not target.is_symlink() and hasattr(os, "fchmod"):
        os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
    return os.fdopen(descriptor, "wb")


def _writer(file: IO[bytes], path: Path, option: str) -> Write:
    def write(data: str | bytes) -> None:
        with _told(path, option):
            file.write(data.encode() if isinstance(data, str) else data)

    return write


@contextmanager
def _told(path: Path, option: str) -> Iterator[None]:
    """An error of the operating system as one line that names the path."""
    try:
        yield
    except OSError as error:
        raise _cannot_write(path, option, error) from None


def write_file(path: Path, data: str | bytes, option: str = "--out") -> None:
    """Write a file whole or not at all."""
    with replacing(path, option) as write:
        write(data)


def read_text(path: Path, most: int) -> str:
    """A file as UTF-8 text.

    Args:
        path: the file.
        most: bytes that it may have; no more is read.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
        LZPenaltyError: it is longer.
    """
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise LZPenaltyError(f"{path}: longer than {most:,} bytes; give a shorter file.")
    return data.decode("utf-8")


def why_others_may_change(path: Path) -> str | None:
    """Why somebody else could put another file or folder at this path; `None` if only root and this user can.

    Every folder above it counts too: who may write to one of them may swap what is in it. In a folder with the sticky
    bit, such as /tmp, only the owner of a file may do that.

    Args:
        path: absolute and resolved, so that no folder above it is a link.
    """
    for place in (path, *path.parents):
        about = place.lstat()
        if stat.S_ISLNK(about.st_mode):
            return f"{place} is a link"
        owners = {os.geteuid()} if place == path else {os.geteuid(), 0}
        sticky = place != path and about.st_mode & stat.S_ISVTX
        writable = about.st_mode & 0o002 or (about.st_mode & 0o020 and _has_others(about.st_gid))
        if about.st_uid not in owners or (writable and not sticky):
            mode = stat.S_IMODE(about.st_mode)
            return f"{place} belongs to another user or can be written by others (owner {about.st_uid}, mode {mode:o})"
    return None


def _has_others(group: int) -> bool:
    """Whether others may be members of a group. Many systems give each user a group of the same name, for nobody else."""
    import grp
    import pwd

    try:
        user, about = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return True
    if group == 0 or about.gr_name != user.pw_name or not {user.pw_name}.issuperset(about.gr_mem):
        return True  # containers run as any user in group 0
    return any(one.pw_gid == group and one.pw_uid != user.pw_uid for one in pwd.getpwall())
