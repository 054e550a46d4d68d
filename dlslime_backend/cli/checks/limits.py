"""Checks of the limits of a process: pinned memory, descriptors, shared memory, cgroups."""

import os
import resource
from collections.abc import Callable, Iterator

from dlslime_backend.cli.finding import Finding, note, problem
from dlslime_backend.cli.host import CAP_IPC_LOCK, Host

_MIB = 1 << 20
# Below, not even the rings of some pairs and a tensor can be registered.
_LITTLE_MEMLOCK = 64 * _MIB
# A process of eight ranks had 59 descriptors: about 38, and three for each pair, over RDMA more.
_FEW_DESCRIPTORS = 1024
_LITTLE_SHM = 1024 * _MIB

Limits = Callable[[int], tuple[int, int]]


def _bytes(count: int) -> str:
    if count == resource.RLIM_INFINITY:
        return "unlimited"
    return f"{count / _MIB:,.0f} MiB" if count >= _MIB else f"{count // 1024} KiB"


def memlock(host: Host, limit: Limits = resource.getrlimit) -> Iterator[Finding]:
    """Report how much memory may be pinned, which RDMA needs."""
    soft, hard = limit(resource.RLIMIT_MEMLOCK)
    exempt = host.has_capability(CAP_IPC_LOCK) and host.in_initial_user_namespace()
    text = f"{_bytes(soft)} may be pinned" + (", and CAP_IPC_LOCK lifts it" if exempt else "")
    unlimited = soft == resource.RLIM_INFINITY
    if exempt or unlimited or soft >= _LITTLE_MEMLOCK:
        yield Finding("memlock", text)
        return
    remedy = "ulimit -l unlimited; in /etc/security/limits.conf: '* - memlock unlimited'; "
    remedy += "docker run --ulimit memlock=-1; for systemd and Slurm: LimitMEMLOCK=infinity"
    if host.has_capability(CAP_IPC_LOCK):
        text += "; CAP_IPC_LOCK does not count in a user namespace of its own"
    if host.rdma_devices():
        yield problem(
            "memlock",
            f"{text} (hard limit {_bytes(hard)}): RDMA devices can't register memory beyond",
            remedy,
        )
    else:
        yield note("memlock", f"{text}: enough without RDMA devices", remedy)


def descriptors(limit: Limits = resource.getrlimit) -> Iterator[Finding]:
    """Report how many descriptors a process may have."""
    soft, hard = limit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FEW_DESCRIPTORS:
        yield Finding("descriptors", f"{soft:,} descriptors for a process")
    else:
        yield problem(
            "descriptors",
            f"a process may have {soft} descriptors (hard limit {hard}): each pair takes three, "
            "over RDMA more",
            f"ulimit -n {max(hard, 65536)}; docker run --ulimit nofile=65536",
        )


def shared_memory(host: Host) -> Iterator[Finding]:
    """Report the size of /dev/shm and the memory limit of the control group."""
    try:
        status = os.statvfs(host.path("/dev/shm"))
    except OSError as error:
        yield note("/dev/shm", f"can't be inspected ({error.strerror}); dlslime does not use it")
    else:
        size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
        text = f"{_bytes(size)}, {_bytes(free)} free; dlslime does not use it"
        if size < _LITTLE_SHM:
            remedy = "docker run --shm-size, or a Memory emptyDir at /dev/shm"
            yield note("/dev/shm", f"{text}, but DataLoader and NCCL do", remedy)
        else:
            yield Finding("/dev/shm", text)
    most = host.text("/sys/fs/cgroup/memory.max")
    if most not in (None, "max"):
        yield Finding("memory", f"the control group may use {_bytes(int(str(most)))}")
