"""The files of a machine that checks read."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CAP_IPC_LOCK = 14
CAP_SYS_PTRACE = 19
# Inode of the initial user namespace, a constant of the kernel (PROC_USER_INIT_INO).
INITIAL_USER_NAMESPACE = 4026531837
INITIAL_PID_NAMESPACE = 4026531836


@dataclass(frozen=True)
class Host:
    """A machine, seen from this process; tests give the folder of a made-up one.

    Attributes:
        root: of the file system with /sys, /proc and /dev.
        variables: environment variables.
    """

    root: Path = Path("/")
    variables: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def path(self, name: str) -> Path:
        """Return the path of a file, given as an absolute path of the machine."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """Return the text of a file without surrounding space, or None if it can't be read."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except OSError:
            return []

    def has_capability(self, number: int) -> bool:
        """Return whether the process has a capability in effect."""
        for line in (self.text("/proc/self/status") or "").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
        return False

    def in_initial_user_namespace(self) -> bool:
        """Return whether capabilities of the process count for the whole machine."""
        return self.namespace("user") in (None, INITIAL_USER_NAMESPACE)

    def namespace(self, kind: str) -> int | None:
        """Return the inode of the process's namespace of a kind, such as "pid"."""
        try:
            target = os.readlink(self.path(f"/proc/self/ns/{kind}"))
            return int(target.partition("[")[2].rstrip("]"))
        except (OSError, ValueError):
            return None

    def rdma_devices(self) -> list[str]:
        """Return the names of the RDMA devices that the kernel shows."""
        return self.names("/sys/class/infiniband")

    def rdma_ports(self) -> Iterator[tuple[str, int]]:
        """Yield device and number of each RDMA port."""
        for device in self.rdma_devices():
            for port in self.names(f"/sys/class/infiniband/{device}/ports"):
                if port.isdigit():
                    yield device, int(port)
