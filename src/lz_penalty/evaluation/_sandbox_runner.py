"""Run one program under limits. `sandbox` starts the text of this file with `python -I`, so it imports no other module.

Three processes take part. The first one isolates itself and waits. The second one is process 1 of the new process
namespace: it dies with the first one, and the kernel then ends everything in the namespace. The third one runs the program.
With the audit hook there is no second one.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

NEW_USER = 0x10000000
NAMESPACES = 0x00020000 | 0x08000000 | 0x20000000 | 0x40000000  # mounts, shared memory, processes, network
MOUNT_SETATTR = 442  # the number of the system call on every processor
KEEP_CAPABILITIES, NO_NEW_PRIVILEGES, DIE_WITH_PARENT = 8, 38, 1  # of prctl
READ_ALL_FILES = 1 << 2  # CAP_DAC_READ_SEARCH
CAPABILITY_VERSION = 0x20080522
NOBODY = 65_534
KILL = 9

FORBIDDEN = (
    "socket.",
    "subprocess.",
    "ctypes.",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.kill",
    "os.system",
    "pty.",
)
CHANGES = frozenset(
    f"os.{name}"
    for name in ("remove", "rename", "rmdir", "mkdir", "link", "symlink", "chmod", "chown", "truncate", "utime")
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main() -> None:
    """Read an order from stdin, isolate, report which isolation is in force, and run the program."""
    order = json.loads(sys.stdin.buffer.read())
    report, kind = order["report"], order["isolation"]
    os.environ.clear()
    libc = ctypes.CDLL(None, use_errno=True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        if kind == "namespaces":
            isolate(libc, order["disk"])
            wait_in_child(libc)
        wait_in_child(libc)
        drop_privileges(libc, required=kind == "namespaces")
        limit(order)
    except (OSError, ValueError) as error:
        os.write(report, f"refused: {error}\n".encode())
        os._exit(1)
    if kind == "hook":
        sys.addaudithook(hook(os.getcwd()))
    os.write(report, f"{kind}\n".encode())
    run(order["program"], order["token"], report)


def wait_in_child(libc: ctypes.CDLL) -> None:
    """Fork and return in the child only. The parent waits for it and exits with its status."""
    child = os.fork()
    if not child:
        _die_with_parent(libc)
        return
    while True:
        process, status = os.wait()
        if process == child:
            os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _die_with_parent(libc: ctypes.CDLL) -> None:
    libc.prctl(DIE_WITH_PARENT, KILL, 0, 0, 0)


# ---------------------------------------------------------------- namespaces


def isolate(libc: ctypes.CDLL, disk: int) -> None:
    """Enter new namespaces: no network, no other processes, all files read-only except an empty working directory."""
    user, group, here = os.geteuid(), os.getegid(), os.getcwd().encode()
    _call(libc.unshare, "unshare", NAMESPACES | (NEW_USER if user else 0))
    if user:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _call(libc.mount, "mount", b"none", b"/", None, 1 << 14 | 1 << 18, None)  # recursively private
    read_only = (ctypes.c_uint64 * 4)(1, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(read_only))
    _call(libc.syscall, "mount_setattr", MOUNT_SETATTR, -100, b"/", 0x8000, ctypes.byref(read_only), size)
    _call(libc.mount, "mount tmpfs", b"tmpfs", here, b"tmpfs", 2 | 4, f"size={disk},mode=777".encode())
    os.chdir(here)


def _call(function: Any, name: str, *arguments: Any) -> None:
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def drop_privileges(libc: ctypes.CDLL, required: bool) -> None:
    """Become an unprivileged user if this is root, for whom the kernel does not limit processes, and drop all capabilities.

    Reading stays allowed, because Python's own files may belong to root.
    """
    kept = 0
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if not os.geteuid():
        libc.prctl(KEEP_CAPABILITIES, 1, 0, 0, 0)
        try:
            os.chown(".", NOBODY, NOBODY)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        except OSError:
            if required:
                raise
        kept = READ_ALL_FILES
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    capabilities = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    if libc.capset(ctypes.byref(header), ctypes.byref(capabilities)) and required:
        raise OSError(ctypes.get_errno(), "capset failed")
    _die_with_parent(libc)  # a change of the user has cleared this


# ---------------------------------------------------------------- limits


def limit(order: dict[str, Any]) -> None:
    """Limit processor time, memory, the size of a file, processes and open files."""
    for kind, most in (
        (resource.RLIMIT_CPU, order["cpu_seconds"]),
        (resource.RLIMIT_AS, order["memory"]),
        (resource.RLIMIT_FSIZE, order["disk"]),
        (resource.RLIMIT_NPROC, 1),  # no further process or thread
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def hook(home: str) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that refuses the network, processes, signals and changes of files outside of `home`."""
    real, allowed = os.path.realpath, (os.path.realpath(home), os.devnull)

    def inside(path: Any) -> bool:
        if isinstance(path, int):
            return True
        where = real(os.fsdecode(path))
        return where in allowed or where.startswith(allowed[0] + os.sep)

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(FORBIDDEN):
            raise PermissionError(f"{event} is not allowed in the sandbox")
        if event == "open":
            if (arguments[2] or 0) & WRITING and not inside(arguments[0]):
                raise PermissionError("writing outside of the working directory is not allowed in the sandbox")
        elif event in CHANGES:
            paths = [one for one in arguments if isinstance(one, (str, bytes, os.PathLike))]
            in_folder = event != "os.truncate" and isinstance(arguments[-1], int) and arguments[-1] != -1
            if in_folder or not all(map(inside, paths)):
                raise PermissionError(f"{event} outside of the working directory is not allowed in the sandbox")

    return check


def run(program: str, token: int, report: int) -> None:
    """Run the program. If it comes to its end, copy the token from its pipe into the report: this is the proof."""
    read, write, leave = os.read, os.write, os._exit
    module = types.ModuleType("program")
    sys.modules["program"] = sys.modules["__main__"] = module
    status = 1
    try:
        exec(compile(program, "program.py", "exec", dont_inherit=True), module.__dict__)
        status = 0
    except BaseException:
        traceback.print_exc(limit=-3)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if not status:
            write(report, read(token, 64))
        leave(status)


if __name__ == "__main__":
    main()
