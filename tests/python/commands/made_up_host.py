"""Machines that do not exist, as folders with /sys, /proc and /dev, for the doctor's checks."""

from __future__ import annotations

from pathlib import Path

from dlslime_backend.cli.host import INITIAL_PID_NAMESPACE, INITIAL_USER_NAMESPACE, Host

ALL_CAPABILITIES = "000001ffffffffff"
NO_CAPABILITIES = "0000000000000000"


class MadeUpHost:
    """Writes the files of a machine below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.capabilities(NO_CAPABILITIES)
        self.namespace("user", INITIAL_USER_NAMESPACE)
        self.namespace("pid", INITIAL_PID_NAMESPACE)

    def file(self, name: str, text: str = "") -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def capabilities(self, effective: str) -> None:
        self.file("/proc/self/status", f"Name:\tpython\nCapEff:\t{effective}")

    def namespace(self, kind: str, inode: int) -> None:
        link = self.root / "proc/self/ns" / kind
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(f"{kind}:[{inode}]")

    def nic(self, name: str = "mlx5_0", state: str = "4: ACTIVE", node: bool = True) -> str:
        """Add an RDMA device with one port and GID 3; return the folder of the port."""
        port = f"/sys/class/infiniband/{name}/ports/1"
        self.file(f"{port}/state", state)
        self.file(f"{port}/phys_state", "5: LinkUp")
        self.file(f"{port}/rate", "400 Gb/sec (4X NDR)")
        self.file(f"{port}/link_layer", "Ethernet")
        self.file(f"{port}/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000")
        self.file(f"{port}/gids/3", "0000:0000:0000:0000:0000:ffff:0a09:0001")
        self.file(f"{port}/gid_attrs/types/3", "RoCE v2")
        uverbs = f"uverbs{len(self.host().names('/sys/class/infiniband_verbs'))}"
        self.file(f"/sys/class/infiniband_verbs/{uverbs}/ibdev", name)
        self.file("/sys/module/ib_uverbs/refcnt", "1")
        if node:
            self.file(f"/dev/infiniband/{uverbs}")
        return port

    def host(self, **variables: str) -> Host:
        return Host(self.root, variables)
