"""The doctor's checks, on machines made up of files: the broken are told, the sound are not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from dlslime_backend.cli.checks import isolation, limits, network, rdma, software
from dlslime_backend.cli.finding import Finding, Level
from harness import dlslime_only
from made_up_host import ALL_CAPABILITIES, MadeUpHost

pytestmark = dlslime_only

KIB, MIB = 1 << 10, 1 << 20
UNLIMITED = -1


@pytest.fixture
def machine(tmp_path: Path) -> MadeUpHost:
    return MadeUpHost(tmp_path)


def problem_of(found: Iterable[Finding]) -> Finding:
    """Return the one problem among the findings; fail unless there is exactly one."""
    problems = [finding for finding in found if finding.level is Level.PROBLEM]
    assert len(problems) == 1, problems
    assert problems[0].remedy
    return problems[0]


def expect_no_problem(found: Iterable[Finding]) -> None:
    found = list(found)
    assert found
    assert [finding for finding in found if finding.level is Level.PROBLEM] == []


def all_of_rdma(machine: MadeUpHost, **variables: str) -> list[Finding]:
    host = machine.host(**variables)
    checks = (rdma.devices, rdma.ports, rdma.gids, rdma.links, software.modules)
    return [finding for check in checks for finding in check(host)]


def test_sound_nic_is_no_problem(machine: MadeUpHost) -> None:
    machine.nic()
    expect_no_problem(all_of_rdma(machine))


def test_memlock_of_64_kib_with_a_nic_is_a_problem(machine: MadeUpHost) -> None:
    machine.nic()
    found = problem_of(limits.memlock(machine.host(), lambda _: (64 * KIB, 64 * KIB)))
    assert "64 KiB may be pinned" in found.text
    assert "ulimit -l" in found.remedy


def test_memlock_matters_neither_without_a_nic_nor_with_the_capability(machine: MadeUpHost) -> None:
    little = lambda _: (64 * KIB, 64 * KIB)  # noqa: E731
    expect_no_problem(limits.memlock(machine.host(), little))
    machine.nic()
    machine.capabilities(ALL_CAPABILITIES)
    expect_no_problem(limits.memlock(machine.host(), little))
    machine.capabilities("0")
    expect_no_problem(limits.memlock(machine.host(), lambda _: (UNLIMITED, UNLIMITED)))


def test_capability_does_not_lift_memlock_in_a_user_namespace(machine: MadeUpHost) -> None:
    machine.nic()
    machine.capabilities(ALL_CAPABILITIES)
    machine.namespace("user", 4026532001)
    found = problem_of(limits.memlock(machine.host(), lambda _: (64 * KIB, 64 * KIB)))
    assert "does not count in a user namespace" in found.text


def test_missing_node_in_a_container_is_a_problem(machine: MadeUpHost) -> None:
    machine.nic(node=False)
    found = problem_of(all_of_rdma(machine))
    assert "/dev/infiniband/uverbs0 is missing" in found.text
    assert "--device=/dev/infiniband" in found.remedy


def test_missing_library_matters_with_a_nic(machine: MadeUpHost) -> None:
    host = machine.host()
    missing = lambda name: f"{name}: no such file"  # noqa: E731
    expect_no_problem(software.libraries(host, missing))
    machine.nic()
    found = problem_of(software.libraries(host, missing))
    assert found.check == "libibverbs"
    assert "mlx5_0" in found.text


@pytest.mark.parametrize("name", ["DLSLIME_GID_INDEX", "NCCL_IB_GID_INDEX"])
def test_wrong_gid_index_is_a_problem(machine: MadeUpHost, name: str) -> None:
    machine.nic()
    found = problem_of(all_of_rdma(machine, **{name: "1"}))
    assert "set to 1" in found.text
    assert "3 0000:0000:0000:0000:0000:ffff:0a09:0001 (RoCE v2)" in found.text
    expect_no_problem(all_of_rdma(machine, **{name: "3"}))
    expect_no_problem(all_of_rdma(machine, **{name: "-1"}))


def test_port_without_gids_is_a_problem(machine: MadeUpHost) -> None:
    port = machine.nic()
    machine.file(f"{port}/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000")
    assert "no GID" in problem_of(all_of_rdma(machine)).text


def test_infiniband_without_a_subnet_manager_is_a_problem(machine: MadeUpHost) -> None:
    port = machine.nic(state="2: INIT")
    machine.file(f"{port}/link_layer", "InfiniBand")
    machine.file(f"{port}/sm_lid", "0x0")
    assert "subnet manager" in problem_of(all_of_rdma(machine)).text


def test_losses_and_limits_of_a_link_are_noted(machine: MadeUpHost) -> None:
    port = machine.nic()
    machine.file(f"{port}/hw_counters/out_of_sequence", "12")
    machine.file(f"{port}/pkeys/0", "0x7fff")
    machine.file(f"{port}/gid_attrs/ndevs/0", "eth0")
    machine.file("/sys/class/net/eth0/mtu", "1500")
    machine.file("/sys/class/infiniband/mlx5_0/device/current_link_width", "8")
    machine.file("/sys/class/infiniband/mlx5_0/device/max_link_width", "16")
    notes = [finding.text for finding in all_of_rdma(machine) if finding.level is Level.NOTE]
    for word in ("out_of_sequence 12", "limited member", "MTU of 1500", "width of 8, of 16"):
        assert [text for text in notes if word in text], (word, notes)


def test_refused_reading_is_a_problem(machine: MadeUpHost) -> None:
    found = problem_of(isolation.reading(machine.host(), lambda: errno.EPERM))
    assert "seccomp" in found.text
    assert "security-opt" in found.remedy
    expect_no_problem(isolation.reading(machine.host(), lambda: 0))


@pytest.mark.parametrize(("scope", "capable", "level"), [
    ("0", False, Level.OK), ("1", False, Level.NOTE), ("1", True, Level.OK),
    ("2", False, Level.PROBLEM), ("2", True, Level.OK), ("3", True, Level.PROBLEM),
])  # fmt: skip
def test_ptrace_scope(machine: MadeUpHost, scope: str, capable: bool, level: Level) -> None:
    machine.file("/proc/sys/kernel/yama/ptrace_scope", scope)
    machine.capabilities(ALL_CAPABILITIES if capable else "0")
    (found,) = isolation.reading(machine.host(), lambda: 0)
    assert found.level is level
    if level is not Level.OK:
        assert f"is {scope}" in found.text
        assert "kernel.yama.ptrace_scope=0" in found.remedy


def test_own_pid_namespace_is_noted(machine: MadeUpHost) -> None:
    machine.namespace("pid", 4026532002)
    (found,) = isolation.namespaces(machine.host())
    assert found.level is Level.NOTE
    assert "processes (pid)" in found.text
    assert "DLSLIME_RENDEZVOUS_DIR" in found.remedy


@pytest.mark.parametrize("name", ["DLSLIME_RENDEZVOUS_DIR", "NVIDIA_DRA_LOCAL_IPC_DIR"])
def test_common_directory_must_be_there(machine: MadeUpHost, name: str) -> None:
    machine.file("/run/pods/socket")
    (found,) = isolation.common_directory(machine.host(**{name: "/run/pods"}))
    assert found.level is Level.OK
    assert f"{name}=/run/pods" in found.text
    for folder in ("/run/none", "/run/pods/socket"):
        (found,) = isolation.common_directory(machine.host(**{name: folder}))
        assert found.level is Level.PROBLEM
        assert f"{name}={folder} is no directory" in found.text
        assert "mount the directory into each container" in found.remedy
    assert list(isolation.common_directory(machine.host(**{name: ""}))) == []


def test_common_directory_must_be_writable(
    machine: MadeUpHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.file("/run/pods/socket")
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root always may
    found = problem_of(isolation.common_directory(machine.host(DLSLIME_RENDEZVOUS_DIR="/run/pods")))
    assert f"may not be written by uid {os.geteuid()}" in found.text


def test_64_descriptors_are_a_problem() -> None:
    found = problem_of(limits.descriptors(lambda _: (64, 4096)))
    assert "64 descriptors (hard limit 4096)" in found.text
    assert "ulimit -n" in found.remedy
    expect_no_problem(limits.descriptors(lambda _: (20_000, 20_000)))


def test_name_server_that_never_answers_is_a_problem() -> None:
    found = problem_of(
        network.names(lambda _: (0.0, "10.0.0.5"), lambda _: (5.0, "failed: no answer"))
    )
    assert "looking up ::ffff:127.0.0.1 takes 5.0 s" in found.text
    assert "add '::ffff:127.0.0.1 " in found.remedy
    assert "/etc/hosts" in found.remedy
    expect_no_problem(network.names(lambda _: (0.0, "10.0.0.5"), lambda _: (0.0, "node5")))


def test_reverse_dns_is_asked_for_the_addresses_that_jobs_meet_at() -> None:
    asked = []

    def look_back(address: str) -> tuple[float, str]:
        asked.append(address)
        return 0.0, "node5"

    list(network.names(lambda _: (0.0, "127.0.0.1"), look_back, lambda: "10.0.0.5"))
    assert sorted(asked) == ["10.0.0.5", "127.0.0.1"]


def test_store_asks_for_mapped_addresses() -> None:
    assert network.as_torch_asks("10.0.0.5") == "::ffff:10.0.0.5"
    assert network.as_torch_asks("fd00::5") == "fd00::5"


def test_module_inside_the_kernel_is_no_problem(machine: MadeUpHost) -> None:
    machine.nic()
    (machine.root / "sys/module/ib_uverbs/refcnt").unlink()
    (machine.root / "sys/module/ib_uverbs").rmdir()
    expect_no_problem(software.modules(machine.host()))


def test_interface_without_an_address_is_a_problem() -> None:
    def refuse() -> str:
        raise RuntimeError("no interface is selected by DLSLIME_SOCKET_IFNAME=eth7")

    assert "eth7" in problem_of(network.addresses(refuse)).text
