#!/usr/bin/env python3
"""Runs a command on one or two hosts with real (software) RDMA NICs, all of them on this machine.

Each host ("node") is a user-mode Linux kernel with the rdma_rxe driver, an ordinary process: no
KVM, no modules, no hardware. libibverbs, perftest and torchrun work unchanged in a node. A node
boots in half a second and runs programs at full speed on ONE processor (system calls are slow). A
node sees the files of the machine, but can write below --out only; /tmp and /dev/shm are the node's
own. Two nodes are joined by a cable (a veth pair) for each NIC.

    tests/lab/lab.py --out /tmp/lab -- sh -c 'torchrun --nnodes $NNODES --node-rank $NODE_RANK \\
        --master-addr $MASTER_ADDR --master-port 29500 program.py'

The command finds NODE_RANK, NNODES, NODE_ADDR, MASTER_ADDR (10.9.0.1) and LAB_OUT in its
environment, and NICs rxe0, rxe1, ... on vec0, vec1, ... at 10.9.0.<node + 1>, 10.10.0.<node + 1>,
... Faults: `tc qdisc add dev vec0 root netem loss 1%`, `ip link set vec0 down`.

Root is needed. The exit status is that of the first node with a status other than 0; 124 after the
time-out; 125 for a node that ended before its command.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

HERE = Path(__file__).resolve().parent
TOOLS = {"ip": "iproute2", "rdma": "iproute2", "ethtool": "ethtool"}
PROVIDER = Path("/etc/libibverbs.d/rxe.driver")  # of ibverbs-providers
SYSTEM_PATHS = "/usr/local/sbin:/usr/sbin:/sbin"
TIMED_OUT = 124
NO_STATUS = 125  # the node ended without a status: the node crashed, or was killed
CONSOLE_LINES = 60  # of a kernel, which begins with about 50 lines on devices


def _not_for() -> str:
    """Return why the machine or the user rules out a lab, or ""."""
    if os.uname().machine != "x86_64":
        return f"the lab's kernel is for x86_64, this machine is {os.uname().machine}"
    if os.geteuid() != 0:
        return "the lab makes network interfaces, which needs root"
    return ""


def missing_packages() -> list[str]:
    """Return the Debian packages still missing for a lab on the machine."""
    path = f"{os.environ['PATH']}:{SYSTEM_PATHS}"
    missing = {package for tool, package in TOOLS.items() if not shutil.which(tool, path=path)}
    if not PROVIDER.exists():
        missing.add("ibverbs-providers")
    return sorted(missing)


def why_not() -> str:
    """Return why the machine can have no lab, or ""."""
    reason = _not_for()
    if reason:
        return reason
    missing = missing_packages()
    if missing:
        return f"the lab needs {', '.join(missing)} (apt-get install)"
    try:
        with Cables(1):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network interface can be made here: {error}"


def _run(command: str, *, check: bool = True) -> None:
    subprocess.run(
        command.split(), check=check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


class Cables:
    """A veth pair for each NIC, between the two nodes."""

    # RoCE sends bursts of packets without flow control: packets that do not fit into a socket's
    # buffer are dropped, and sent again late.
    _SETTINGS: ClassVar = {"rmem_max": 1 << 27, "rmem_default": 1 << 26, "wmem_default": 1 << 26}

    def __init__(self, count: int) -> None:
        self._tag = f"lab{os.getpid() % 100000}"
        self._count = count
        self._before: dict[Path, str] = {}

    def end(self, node: int, nic: int) -> str:
        """Return the name of the interface that `nic` of `node` is plugged into."""
        return f"{self._tag}{'ab'[node]}{nic}"

    def _make(self) -> None:
        for name, value in self._SETTINGS.items():
            path = Path("/proc/sys/net/core", name)
            before = path.read_text(encoding="ascii")
            path.write_text(str(max(value, int(before))), encoding="ascii")
            self._before[path] = before
        for nic in range(self._count):
            one, other = self.end(0, nic), self.end(1, nic)
            _run(f"ip link add {one} mtu 9000 type veth peer name {other} mtu 9000")
            for end in (one, other):
                # Packets travel as the nodes send them: not merged, split or left to hardware.
                _run(f"ethtool -K {end} tx off gso off gro off tso off sg off")
                _run(f"ip link set {end} up promisc on")

    def __enter__(self) -> Cables:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for nic in range(self._count):
            _run(f"ip link del {self.end(0, nic)}", check=False)
        for path, value in self._before.items():
            path.write_text(value, encoding="ascii")


def _pinned(rank: int, pin: bool) -> list[str]:
    """Return a command prefix for a node's own processor: else nodes may share one for seconds."""
    processors = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(processors[rank % len(processors)])] if pin else []


class Node:
    """A host."""

    def __init__(
        self, rank: int, options: argparse.Namespace, kernel: str, cables: Cables | None
    ) -> None:
        self.rank = rank
        self.out = Path(options.out).resolve()
        for stale in (self.log, self.status_file):
            stale.unlink(missing_ok=True)
        self._console = self.out / f"console{rank}.log"
        command = [
            kernel,
            f"mem={options.mem}",
            f"umid=lab{os.getpid()}-{rank}",
            "root=/dev/root",
            "ro",
            "quiet",
        ]
        command += [
            "rootfstype=hostfs",
            "rootflags=/",
            f"init={HERE / 'node_init'}",
            "con=null",
            "con0=null,fd:1",
        ]
        command += [
            f"lab_rank={rank}",
            f"lab_nodes={options.nodes}",
            f"lab_nics={options.nics}",
            f"lab_project={HERE.parents[1]}",
            f"lab_out={self.out}",
        ]
        command += [f"lab_path={os.environ['PATH']}:{SYSTEM_PATHS}"]
        for nic in range(options.nics) if cables else ():
            mac = f"00:16:3e:00:{nic:02x}:{rank + 1:02x}"
            link = f"transport=raw,ifname={cables.end(rank, nic)},depth=256,mtu=4300,mac={mac}"
            command.append(f"vec{nic}:{link}")
        with self._console.open("w") as console:
            self.process = subprocess.Popen(
                [*_pinned(rank, options.pin), *command],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> Path:
        """Return the path of the command's output."""
        return self.out / f"node{self.rank}.log"

    @property
    def status_file(self) -> Path:
        """Return the path of the command's exit status."""
        return self.out / f"node{self.rank}.status"

    def power_off(self) -> None:
        """Pull the plug."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()

    def status(self) -> int:
        """Return the command's exit status, or NO_STATUS."""
        text = self.status_file.read_text().strip() if self.status_file.exists() else ""
        return int(text) if text else NO_STATUS

    def crashed(self) -> bool:
        """Tell whether the node has ended before the command."""
        return self.process.poll() is not None and self.status() == NO_STATUS

    def story(self) -> str:
        """Return the command's output, and the kernel's if the command did not end."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        if self.status() != NO_STATUS:
            return text
        console = self._console.read_text(errors="replace").splitlines()[-CONSOLE_LINES:]
        return text + "".join(f"(kernel) {line}\n" for line in console)


def _write_command(options: argparse.Namespace) -> None:
    lines = [f"export {shlex.quote(entry)}" for entry in options.env]
    lines += [f"cd {shlex.quote(os.getcwd())}", f"exec {shlex.join(options.command)}"]
    Path(options.out, "command").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _wait(nodes: Sequence[Node], seconds: float) -> bool:
    """Wait until all nodes have ended; a crash of a node ends the wait, too."""
    deadline = time.monotonic() + seconds
    while any(node.process.poll() is None for node in nodes):
        if any(node.crashed() for node in nodes):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def run(options: argparse.Namespace) -> int:
    """Boot the nodes, wait for the nodes' commands and print the output."""
    kernel = subprocess.run(
        [HERE / "build_kernel"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    _write_command(options)
    nodes: list[Node] = []
    with Cables(options.nics if options.nodes == 2 else 0) as cables:
        try:
            nodes += [
                Node(rank, options, kernel, cables if options.nodes == 2 else None)
                for rank in range(options.nodes)
            ]
            in_time = _wait(nodes, options.timeout)
            crashed = [node.rank for node in nodes if node.crashed()]
        finally:
            for node in nodes:
                node.power_off()
    for node in nodes:
        print(f"--- node {node.rank}\n{node.story()}", end="", flush=True)
    for rank in crashed:
        print(f"lab: node {rank} has ended before its command", flush=True)
    if not in_time:
        print(f"lab: not over after {options.timeout} s", flush=True)
        return TIMED_OUT
    failed = {node.rank: node.status() for node in nodes if node.status()}
    for rank, status in failed.items():
        if status != NO_STATUS:  # else the node has crashed, or was stopped as its peer had
            print(f"lab: the command of node {rank} has status {status}", flush=True)
    return next(iter(failed.values()), 0)


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--nics", type=int, default=1, help="per node (default: 1)")
    parser.add_argument("--pin", action="store_true", help="each node to a processor of its own")
    parser.add_argument("--mem", default="4G", help="memory of a node (default: 4G)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds (default: 600)")
    parser.add_argument("--out", help="folder for logs, writable from inside")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="for the command"
    )
    parser.add_argument("--check", action="store_true", help="only say why there can be no lab")
    parser.add_argument(
        "--packages", action="store_true", help="only name the Debian packages that are missing"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with clean-up
    if options.packages:
        print(*([] if _not_for() else missing_packages()))
        return 0
    problem = why_not()
    if problem:
        sys.exit(problem)
    if options.check:
        return 0
    if not options.out:
        parser.error("--out is needed")
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
