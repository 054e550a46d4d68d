"""Broken set-ups of networks: packets that a firewall drops, addresses that lead nowhere, names."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from harness import dlslime_only, init_group, run_world, sync
from namespaces import OTHER, OTHER_V4, needs_namespaces, one_host, own_store, two_hosts
from nodes import free_port
from setups import Rank, doctor, expect_problem, job
from test_groups import exchange

pytestmark = dlslime_only

OPEN = 29555  # the one port that the firewall lets through, for a store
NOWHERE = "dlsl5"  # an interface whose network no other host is in


def _ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)


def drop_packets() -> None:
    """Drop in silence all packets of TCP that come over OTHER, except those to the port OPEN."""
    for family in ("-4", "-6"):
        _ip(
            f"{family} rule add pref 1 iif {OTHER} ipproto tcp dport {OPEN} lookup local",
            f"{family} rule add pref 2 iif {OTHER} ipproto tcp blackhole",
            f"{family} rule add pref 3 lookup local",
            f"{family} rule del pref 0",
        )


def add_nowhere(number: int) -> None:
    """Add the interface NOWHERE, which is up, has a cable, and leads to no other host."""
    _ip(
        f"link add {NOWHERE} type veth peer name dlsl6",
        f"addr add 10.99.{number}.1/24 dev {NOWHERE}",
        f"link set {NOWHERE} up",
        "link set dlsl6 up",
    )


# --- a firewall -----------------------------------------------------------------------------------


def _warning_of_the_job(rank: int, size: int, spoil: Callable[[int], None]) -> str:
    """Return what the rank of a job between two hosts says while it waits for its peer."""
    two_hosts(rank)
    spoil(rank)
    sync("spoilt")
    program = Rank(rank, OPEN, {"MASTER_ADDR": OTHER_V4.format(1), **NO_RDMA})
    try:
        warning = program.comes_to_say("has not been reached")
        assert program.process.poll() is None, "the network may be mended"
        sync("told", seconds=60)
    finally:
        program.end()
    return warning


NO_RDMA = {"DLSLIME_RDMA": "off"}
REMEDIES = ("let TCP connections to the ports of net.ipv4.ip_local_port_range through firewalls",
            "choose an interface on the peer's host with DLSLIME_SOCKET_IFNAME")  # fmt: skip


def expect_warnings(warnings: list[str], cause: str) -> None:
    """Check that both ranks name the peer, why it is not reached, and what to do."""
    for rank, warning in enumerate(warnings):
        assert f"rank {1 - rank} of " in warning, warning
        assert "no process answers at " in warning, warning
        assert cause in warning, warning
        assert all(remedy in warning for remedy in REMEDIES), warning


def _drop_at_one_end(rank: int) -> None:
    _ip(f"-6 addr flush dev {OTHER}")  # leaves an address to try, which takes less than ten seconds
    if rank == 0:  # which hears no answers of the other host, either
        drop_packets()


@needs_namespaces
def test_waiting_ranks_warn_of_a_firewall() -> None:
    warnings = run_world(
        _warning_of_the_job, 2, _drop_at_one_end, init=False, fresh=True, timeout=150
    )
    expect_warnings(warnings, "no answer for ")


def _doctor_of_a_dropped_port(rank: int, size: int) -> list[dict[str, str]]:
    two_hosts(rank)
    found: list[dict[str, str]] = []
    if rank == 0:
        drop_packets()
    sync("closed")
    if rank == 1:
        place = f"{OTHER_V4.format(1)}:{free_port()}"
        found = list(doctor("--peer", place, "--seconds", "3").values())
    sync("asked")
    return found


@needs_namespaces
def test_doctor_says_that_packets_are_dropped() -> None:
    (found,) = run_world(_doctor_of_a_dropped_port, 2, init=False, fresh=True, timeout=90)[1]
    expect_problem(found, "packets are dropped on the way", "firewall")


# --- an interface that leads nowhere --------------------------------------------------------------


def _with_one_address_that_leads_nowhere(rank: int, size: int) -> str:
    import dlslime_backend

    two_hosts(rank)
    add_nowhere(rank)
    init_group(store=own_store(rank, OTHER_V4.format(1)))
    exchange(None, 1, 300_000)
    route = dlslime_backend.explain(1 - rank)["route"]
    sync("through")
    return str(route)


@needs_namespaces
def test_pair_is_connected_by_the_end_whose_peer_has_a_good_address() -> None:
    for poor in (0, 1):
        env = [{"DLSLIME_HOSTID": f"host{i}", "DLSLIME_RDMA": "off"} for i in range(2)]
        env[poor]["DLSLIME_SOCKET_IFNAME"] = f"={NOWHERE}"
        routes = run_world(_with_one_address_that_leads_nowhere, 2, env=env, init=False, fresh=True)
        assert routes == ["tcp", "tcp"]


@needs_namespaces
def test_waiting_ranks_warn_of_addresses_that_lead_nowhere() -> None:
    env = {"DLSLIME_SOCKET_IFNAME": f"={NOWHERE}"}
    warnings = run_world(
        _warning_of_the_job, 2, add_nowhere, env=env, init=False, fresh=True, timeout=150
    )
    expect_warnings(warnings, "Network is unreachable")


# --- files of /etc --------------------------------------------------------------------------------

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x00020000, 4096, 16384, 1 << 18


def replace_file(path: str, text: str) -> None:
    """Show the process, and its children, another text in a file."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(_CLONE_NEWNS) == 0
    assert libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        ended = libc.mount(file.name.encode(), path.encode(), None, _MS_BIND, None)
    assert ended == 0, os.strerror(ctypes.get_errno())


# --- a host's name that other hosts can't reach ---------------------------------------------------


def _collective_by_host_names(rank: int, size: int, address: str) -> None:
    two_hosts(rank)
    replace_file("/etc/hosts", f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
    assert socket.gethostbyname(socket.gethostname()) == address
    init_group(store=own_store(rank, OTHER_V4.format(1)))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3
    sync("through")


DEBIANS, OF_NO_HOST = "127.0.1.1", OTHER_V4.format(99)


@needs_namespaces
@pytest.mark.parametrize("address", [DEBIANS, OF_NO_HOST])
def test_collectives_do_without_the_address_of_the_hosts_name(address: str) -> None:
    env = {**NO_RDMA, "DLSLIME_FALLBACK": "allow"}
    run_world(_collective_by_host_names, 2, address, env=env, init=False, fresh=True)


# --- a name server that never answers -------------------------------------------------------------

_SILENT = "127.0.0.77"


def ask_a_silent_server() -> socket.socket:
    """Make the process, and its children, ask a name server that takes questions and is silent.

    Returns:
        The server's socket, to be kept.
    """
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((_SILENT, 53))
    replace_file("/etc/resolv.conf", f"nameserver {_SILENT}\n")
    return server


def _doctor_without_answers(rank: int, size: int) -> dict[str, dict[str, str]]:
    one_host(rank)
    with ask_a_silent_server():
        # Longer than the doctor calls slow, and shorter than the C library's ten seconds.
        return doctor(RES_OPTIONS="timeout:2 attempts:1")


@needs_namespaces
def test_doctor_names_the_name_server_that_does_not_answer() -> None:
    (found,) = run_world(_doctor_without_answers, 1, init=False, fresh=True, timeout=120)
    finding = found[f"reverse DNS of {OTHER_V4.format(1)}"]
    expect_problem(finding, f"looking up ::ffff:{OTHER_V4.format(1)} takes", "/etc/hosts")
    assert "a name server does not answer" in finding["text"]
    assert "RES_OPTIONS" in finding["remedy"]
    assert "pair on this host" in found
    assert found["pair on this host"]["level"] != "problem", "slow, but no failure"


def _warning_without_answers(rank: int, size: int) -> str:
    one_host(rank)
    env = {"RES_OPTIONS": "timeout:2 attempts:1"}
    failing = {**env, "DLSLIME_SPIN_US": "much"}  # so that the other goes on for some seconds
    with ask_a_silent_server(), job({"env": env}, {"env": failing}) as (waiting, _):
        return waiting.comes_to_say("looking up the name of this host's address")


@needs_namespaces
def test_job_warns_of_the_name_server_that_does_not_answer() -> None:
    (warning,) = run_world(_warning_without_answers, 1, init=False, fresh=True, timeout=120)
    assert f"::ffff:{OTHER_V4.format(1)} took" in warning, warning
    assert "a name server does not answer" in warning
    assert "/etc/hosts" in warning
    assert "RES_OPTIONS" in warning
