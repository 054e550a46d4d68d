"""Checks of what containers and security modules forbid between processes."""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator

from dlslime_backend.cli.finding import Finding, note, problem
from dlslime_backend.cli.host import CAP_SYS_PTRACE, INITIAL_PID_NAMESPACE, Host

_YAMA = {
    "0": "processes of a user may read each other",
    "1": "a process may read its children, and others that permit it",
    "2": "only processes with CAP_SYS_PTRACE may read others",
    "3": "no process may read another",
}
_LOWER_SCOPE = "as root: sysctl kernel.yama.ptrace_scope=0, or docker run --cap-add SYS_PTRACE"


class _Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]  # noqa: RUF012


def read_own_memory() -> int:
    """Read this process's memory as a peer would; return 0, or the error number."""
    libc = ctypes.CDLL(None, use_errno=True)
    source, target = ctypes.create_string_buffer(b"x"), ctypes.create_string_buffer(1)
    pieces = [_Piece(ctypes.addressof(buffer), 1) for buffer in (target, source)]
    arguments = [ctypes.byref(pieces[0]), 1, ctypes.byref(pieces[1]), 1, 0]
    ended = libc.process_vm_readv(os.getpid(), *map(_as_long, arguments))
    return 0 if ended == 1 else ctypes.get_errno()


def _as_long(value: object) -> object:
    return ctypes.c_ulong(value) if isinstance(value, int) else value


def reading(host: Host, try_it: Callable[[], int] = read_own_memory) -> Iterator[Finding]:
    """Report whether large messages may be read from a peer's memory (process_vm_readv)."""
    failure = try_it()
    scope = host.text("/proc/sys/kernel/yama/ptrace_scope")
    privileged = host.has_capability(CAP_SYS_PTRACE)
    meaning = _YAMA.get(scope or "", "") if scope else "no Yama"
    if failure:
        yield problem(
            "process_vm_readv",
            f"is refused even for this process's own memory ({os.strerror(failure)}): a seccomp "
            "profile forbids it. Large messages take two copies instead of one",
            "docker run --security-opt seccomp=unconfined, or a profile that allows "
            "process_vm_readv and process_vm_writev"
            if failure == errno.EPERM
            else "a kernel with CONFIG_CROSS_MEMORY_ATTACH",
        )
    elif scope == "1" and not privileged:
        yield note(
            "ptrace_scope",
            "is 1: a process may read its children, and others that permit it. Ranks of one "
            "launcher permit each other; between processes that were started separately, large "
            "messages take two copies instead of one",
            _LOWER_SCOPE,
        )
    elif scope == "3" or (scope == "2" and not privileged):
        yield problem(
            "ptrace_scope",
            f"is {scope}: {meaning}. Large messages take two copies instead of one",
            "on the host: set kernel.yama.ptrace_scope=0 in /etc/sysctl.conf and restart it"
            if scope == "3"
            else _LOWER_SCOPE,
        )
    else:
        yield Finding("process_vm_readv", f"works; ptrace_scope: {scope or '-'} ({meaning})")


def namespaces(host: Host) -> Iterator[Finding]:
    """Report the namespaces that separate this process from others on the machine."""
    own = []
    if host.namespace("pid") not in (None, INITIAL_PID_NAMESPACE):
        own.append("processes (pid)")
    if not host.in_initial_user_namespace():
        own.append("users")
    mode = host.text("/sys/module/ib_core/parameters/netns_mode")
    if own:
        yield note(
            "namespaces",
            f"a container with its own {' and '.join(own)}: with processes outside of it, large "
            "messages take two copies, and memory is shared only with a common network namespace "
            "or a common directory",
            "for jobs in several containers of one machine: mount one directory into each and set "
            "DLSLIME_RENDEZVOUS_DIR to it, or docker run --pid and --network of one",
        )
    else:
        yield Finding("namespaces", "processes and users are those of the host")
    if mode == "N" and host.rdma_devices():
        yield Finding("RDMA namespaces", "exclusive: each device belongs to one network namespace")


def common_directory(host: Host) -> Iterator[Finding]:
    """Report whether processes of other containers can be met in the directory that is set."""
    for name in ("DLSLIME_RENDEZVOUS_DIR", "NVIDIA_DRA_LOCAL_IPC_DIR"):
        if folder := host.variables.get(name):
            break
    else:
        return
    path = host.path(folder)
    if not path.is_dir():
        lack = "is no directory of this container"
    elif not os.access(path, os.W_OK | os.X_OK):
        lack = f"may not be written by uid {os.geteuid()}"
    else:
        yield Finding(
            "common directory",
            f"{name}={folder}: processes of other containers with this directory are met in it",
        )
        return
    yield problem(
        "common directory",
        f"{name}={folder} {lack}",
        "mount the directory into each container, writable for its user, or unset the variable",
    )
