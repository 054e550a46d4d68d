"""Separate networks for ranks of the machine: another interface, no IPv4, two hosts.

A rank moves into a new network namespace before the rank makes its group. Earlier connections,
among them those of the harness's stores, stay connected.
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch.distributed as dist

from harness import await_key, tell

_CLONE_NEWNET = 0x40000000
OTHER = "dlsl0"  # the interface beside the loopback
OTHER_V4, OTHER_V6 = "10.155.0.{}", "fd55::{}"


@functools.cache
def why_not() -> str:
    """Return why the machine makes no namespaces for tests; empty if namespaces work."""
    if os.geteuid() != 0:
        return "not root"
    if not shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
        return "iproute2 is not installed"
    probe = [
        "unshare",
        "--net",
        "ip",
        "link",
        "add",
        OTHER,
        "type",
        "veth",
        "peer",
        "name",
        "dlsl1",
    ]
    result = subprocess.run(probe, capture_output=True, text=True, check=False)
    return result.stderr.strip()


needs_namespaces = pytest.mark.skipif(
    bool(why_not()), reason=f"no network namespaces here: {why_not()}"
)


# Namespaces of a container: all of its own, with a network without any interface. The process is
# number 1, user 0, and killed with the command.
_OWN = ["--user", "--pid", "--ipc", "--mount", "--net"]
POD = ["unshare", *_OWN, "--map-root-user", "--fork", "--kill-child", "--mount-proc"]


@functools.cache
def why_no_pods() -> str:
    """Return why the machine makes no containers' namespaces; empty if they work."""
    if not shutil.which("unshare"):
        return "unshare is not installed"
    return subprocess.run(
        [*POD, "true"], capture_output=True, text=True, check=False
    ).stderr.strip()


needs_pods = pytest.mark.skipif(
    bool(why_no_pods()), reason=f"no containers' namespaces here: {why_no_pods()}"
)


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


def _libc_call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


def _new_network(ipv4: bool) -> None:
    _libc_call("unshare", _CLONE_NEWNET)
    _ip("link set lo up")
    if not ipv4:
        _ip("addr del 127.0.0.1/8 dev lo")


def _address(interface: str, number: int, ipv4: bool) -> None:
    if ipv4:
        _ip(f"addr add {OTHER_V4.format(number)}/24 dev {interface}")
    _ip(f"addr add {OTHER_V6.format(number)}/64 dev {interface} nodad")
    _ip(f"link set {interface} up")


def one_host(rank: int, *, ipv4: bool = True, other: bool = True) -> None:
    """Move all ranks into a common network: a loopback, and perhaps an interface named OTHER."""
    if rank > 0:
        pid = await_key("network")
        descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        _libc_call("setns", descriptor, _CLONE_NEWNET)
        os.close(descriptor)
        return
    _new_network(ipv4)
    if other:
        _ip(f"link add {OTHER} type veth peer name dlsl1")
        _ip("link set dlsl1 up")
        _address(OTHER, 1, ipv4)
    tell("network", str(os.getpid()))


def two_hosts(rank: int, *, ipv4: bool = True) -> None:
    """Move each of two ranks into a network of its own; a cable joins their interfaces OTHER."""
    _new_network(ipv4)
    if rank == 1:
        tell("other network", str(os.getpid()))
        await_key("cable")
        _ip(f"link set dlsl1 name {OTHER}")
        _address(OTHER, 2, ipv4)
        tell("both ends")
        return
    pid = await_key("other network")
    _ip(f"link add {OTHER} type veth peer name dlsl1")
    _ip(f"link set dlsl1 netns {pid}")
    _address(OTHER, 1, ipv4)
    tell("cable")
    await_key("both ends")


def own_store(rank: int, host: str) -> dist.Store:
    """Make a store inside of the network, hosted by rank 0 at the address `host`."""
    seconds = datetime.timedelta(seconds=60)
    if rank == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=seconds)
        tell("store", str(store.port))
        return store
    return dist.TCPStore(host, int(await_key("store")), is_master=False, timeout=seconds)


def connected_addresses() -> set[str]:
    """Return the addresses at both ends of the process's TCP connections, except those of a store.

    The format is that of /proc: hexadecimal, with words in the machine's byte order.
    """
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/thread-self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "01" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
                found.add(fields[2].partition(":")[0])
    return found


def as_in_proc(address: str) -> str:
    """Return an IPv4 address in the format of /proc/net/tcp."""
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
