"""Interfaces chosen for Gloo and TCP, hosts without IPv4, and processes without descriptors."""

import importlib
import os
import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from harness import PATIENCE, dlslime_only, init_group, run_world, sync
from namespaces import (
    OTHER,
    OTHER_V4,
    OTHER_V6,
    as_in_proc,
    connected_addresses,
    needs_namespaces,
    one_host,
    own_store,
    two_hosts,
)
from patterns import blank, expect_pattern, pattern
from test_groups import exchange

pytestmark = dlslime_only

THERE = as_in_proc(OTHER_V4.format(1))


def _route() -> str:
    import dlslime_backend

    return dlslime_backend.explain(1 - dist.get_rank())["route"]


# --- the interface named by a variable ------------------------------------------------------------


def _by_what(rank: int, size: int, what: str) -> list[str]:
    """Return the addresses of the process's new connections after a use."""
    one_host(rank)
    # Connections so far are the harness's and the store's, over the loopback of either network.
    init_group(store=own_store(rank, "127.0.0.1"))
    before = connected_addresses()
    if what != "collectives":
        exchange(None, 1, 300_000)
        assert _route() == what
    else:
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [size] * 3
    used = connected_addresses() - before
    sync("seen")  # a rank that ends earlier closes its end of the connections
    return sorted(used)


USES = ["gloo", "collectives"]  # the route, and Gloo's collectives on any route


def _using(what: str, env: dict[str, str]) -> dict[str, str]:
    return env if what == "collectives" else {**env, "DLSLIME_ROUTE": what}


NAMED = {
    "whole": {"DLSLIME_SOCKET_IFNAME": f"={OTHER}"},
    "prefix": {"DLSLIME_SOCKET_IFNAME": "dlsl0"},
    "list": {"DLSLIME_SOCKET_IFNAME": f"nosuch,{OTHER}"},
    "all but": {"DLSLIME_SOCKET_IFNAME": "^lo,dlsl1"},
    "before Gloo's": {"DLSLIME_SOCKET_IFNAME": OTHER, "GLOO_SOCKET_IFNAME": "lo"},
    "NCCL's": {"NCCL_SOCKET_IFNAME": OTHER},
    "Gloo's": {"GLOO_SOCKET_IFNAME": OTHER},
}


@needs_namespaces
@pytest.mark.parametrize("what", USES)
@pytest.mark.parametrize("how", NAMED)
def test_gloo_goes_by_the_interface_that_is_named(how: str, what: str) -> None:
    env = _using(what, NAMED[how])
    for addresses in run_world(_by_what, 2, what, env=env, init=False, fresh=True):
        assert THERE in addresses, addresses


@needs_namespaces
@pytest.mark.parametrize("what", USES)
def test_gloo_goes_by_the_loopback_where_that_is_named(what: str) -> None:
    env = _using(what, {"DLSLIME_SOCKET_IFNAME": "lo"})
    for addresses in run_world(_by_what, 2, what, env=env, init=False, fresh=True):
        assert THERE not in addresses, addresses


def _use(what: str, limit: timedelta) -> None:
    if what != "collectives":
        dist.irecv(blank(10), 1 - dist.get_rank()).wait(limit)
    else:
        dist.barrier(timeout=limit)


def _no_such_interface(rank: int, size: int, what: str) -> str:
    one_host(rank)
    init_group(store=own_store(rank, "127.0.0.1"))
    with pytest.raises(RuntimeError) as failure:
        _use(what, timedelta(seconds=5 * PATIENCE))
    sync("failed")
    return str(failure.value)


VARIABLES = ["DLSLIME_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"]


@needs_namespaces
@pytest.mark.parametrize("what", USES)
@pytest.mark.parametrize("variable", VARIABLES)
def test_interface_that_is_missing_is_named_with_its_variable(variable: str, what: str) -> None:
    env = _using(what, {variable: "nosuch0"})
    for text in run_world(_no_such_interface, 2, what, env=env, init=False, fresh=True):
        assert f"{variable}=nosuch0" in text, text
        others = [name for name in VARIABLES if name != variable]
        assert not any(f"{name}=" in text for name in others), text


def _no_such_interface_by_shm(rank: int, size: int) -> None:
    one_host(rank)
    init_group(store=own_store(rank, "127.0.0.1"))
    exchange(None)


@needs_namespaces
@pytest.mark.parametrize("variable", VARIABLES)
def test_log_names_the_variable_whose_interface_is_missing(variable: str) -> None:
    """Messages within the host need no interface, so a missing interface is no error yet."""
    env = {variable: "nosuch0"}
    results = run_world(
        _no_such_interface_by_shm, 2, env=env, init=False, fresh=True, with_output=True
    )
    for _, output in results:
        assert f"{variable}=nosuch0" in output, output


# --- hosts without IPv4 ---------------------------------------------------------------------------


def _without_ipv4(rank: int, size: int, hosts: int) -> str:
    if hosts == 1:
        one_host(rank, ipv4=False, other=False)
        store = own_store(rank, "::1")
    else:
        two_hosts(rank, ipv4=False)
        store = own_store(rank, OTHER_V6.format(1))
    init_group(store=store)
    exchange(None, 1)
    exchange(None, 2, 300_000)
    exchange(dist.new_group(), 3)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3
    dist.barrier()
    return _route()


@needs_namespaces
@pytest.mark.parametrize("route", ["auto", "tcp", "gloo"])
def test_host_without_ipv4(route: str) -> None:
    env = {"DLSLIME_ROUTE": route}
    expected = "shm" if route == "auto" else route
    assert run_world(_without_ipv4, 2, 1, env=env, init=False, fresh=True) == [expected] * 2


def _two_named_hosts(route: str, **more: str) -> list[dict[str, str]]:
    """Return environments of two hosts without RDMA: TCP remains, and Gloo has to be forced."""
    env = {"DLSLIME_RDMA": "off", "DLSLIME_FALLBACK": "allow", **more}
    if route == "gloo":
        env["DLSLIME_ROUTE"] = route
    return [{**env, "DLSLIME_HOSTID": f"host{i}"} for i in range(2)]


@needs_namespaces
@pytest.mark.parametrize("route", ["tcp", "gloo"])
@pytest.mark.parametrize("env", [{}, {"DLSLIME_SOCKET_IFNAME": OTHER}], ids=["any", "named"])
def test_two_hosts_without_ipv4(env: dict[str, str], route: str) -> None:
    envs = _two_named_hosts(route, **env)
    assert run_world(_without_ipv4, 2, 2, env=envs, init=False, fresh=True) == [route] * 2


def _two_hosts(rank: int, size: int) -> str:
    two_hosts(rank)
    init_group(store=own_store(rank, OTHER_V4.format(1)))
    exchange(None, 1, 300_000)
    # In the form of IPv4, or IPv6's form of IPv4.
    assert any(address.endswith(THERE) for address in connected_addresses())
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3
    return _route()


@needs_namespaces
@pytest.mark.parametrize("route", ["tcp", "gloo"])
def test_two_hosts_by_the_interface_that_is_named(route: str) -> None:
    """Gloo left alone takes the address of the host's name, which is most often the loopback."""
    envs = _two_named_hosts(route, DLSLIME_SOCKET_IFNAME=OTHER)
    assert run_world(_two_hosts, 2, env=envs, init=False, fresh=True) == [route] * 2


# --- a process without descriptors ----------------------------------------------------------------

SHORTAGE = re.compile(r"descriptor.*ulimit|ulimit.*descriptor|Too many open files")


@contextmanager
def _descriptors_left(count: int) -> Iterator[None]:
    """Let the process open `count` more descriptors for a while."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, usual[1]), usual[1]))
    held: list[int] = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for _ in range(min(count, len(held))):
        os.close(held.pop())
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def _no_descriptors(rank: int, size: int, poor: int, left: int) -> tuple[str, str]:
    """The poor rank is short of descriptors when the pair is to be connected, and later is not."""
    text = ""
    with _descriptors_left(left if rank == poor else 1000):
        sync("short")
        limit = timedelta(seconds=6 * PATIENCE)
        work = dist.isend(pattern(100, 1), 1) if rank == 0 else dist.irecv(blank(100), 0)
        try:
            work.wait(limit)
        except dist.DistBackendError as error:
            text = str(error)
        sync("failed", seconds=60)
    if rank == 0:
        dist.send(pattern(300_000, 2), 1)
    else:
        received = blank(300_000)
        dist.recv(received, 0)
        expect_pattern(received, 2)
    return text, _route()


@pytest.mark.parametrize("expected", ["shm", "tcp"])
@pytest.mark.parametrize("left", [0, 1, 2, 4])
@pytest.mark.parametrize("poor", [0, 1])
def test_both_ends_say_that_one_has_no_descriptor(poor: int, left: int, expected: str) -> None:
    env = {"DLSLIME_ROUTE": expected}
    results = run_world(
        _no_descriptors, 2, poor, left, env=env, fresh=True, with_output=True, timeout=90
    )
    failed = left == 0 or any(text for (text, _), _ in results)  # so few may be enough
    for (text, route), output in results:
        assert not failed or SHORTAGE.search(text), text
        assert "malformed" not in text + output, "a shortage is not the peer's fault"
        assert route == expected, "what was short for a while says nothing of the route"
        assert len(output.splitlines()) < 20, "it is said once, not at every try"


def _no_descriptors_for_gloo(rank: int, size: int, what: str, left: int) -> str:
    if what == "collectives":
        exchange(None)
    with _descriptors_left(left if rank == 1 else 1000):
        sync("short")
        start = time.monotonic()
        with pytest.raises(RuntimeError) as failure:
            _use(what, timedelta(seconds=10 * PATIENCE))
        took = time.monotonic() - start
        sync("failed", seconds=60)
    assert took < 20 * PATIENCE, f"{took:.1f} s"
    return str(failure.value)


@pytest.mark.parametrize(
    ("what", "left"),
    [("gloo", 0), ("gloo", 3), ("collectives", 0), ("collectives", 3)],
)
def test_both_ends_say_that_gloo_got_no_descriptor_at_one(what: str, left: int) -> None:
    env = _using(what, {})
    for text in run_world(_no_descriptors_for_gloo, 2, what, left, env=env, fresh=True, timeout=90):
        assert SHORTAGE.search(text), text


def _no_descriptors_at_init(rank: int, size: int) -> None:
    """Both ranks fail at init: torch numbers its groups, and counts failed groups, too."""
    importlib.import_module("dlslime_backend._backend").extension()  # loading opens files, too
    with _descriptors_left(0), pytest.raises(RuntimeError, match="Too many open files"):
        init_group()
    assert not dist.is_initialized()
    init_group()
    exchange(None)
    dist.barrier()


def test_init_without_descriptors_says_so_and_may_be_tried_again() -> None:
    run_world(_no_descriptors_at_init, 2, init=False, fresh=True)
