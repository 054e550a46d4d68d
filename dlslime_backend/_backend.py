"""Creates the backend of a process group, and the Gloo and NCCL backends used by the backend."""

import contextlib
import copy
import functools
import ipaddress
import itertools
import socket
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dlslime_backend._load import extension, torch_minor

# The Gloo group of a pair gets a time-out of a year, in effect none: a pair without traffic is not
# broken.
_NO_TIMEOUT = timedelta(days=365)
# Limit for the ranks of a group to connect by Gloo, from the time that all have come: in Gloo's
# connect, a rank does not hear that another has failed.
_CONNECT_TIME = timedelta(seconds=60)
_LONGEST_TIMEOUT = timedelta(days=36525)


def _gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    if not dist.is_gloo_available():
        raise RuntimeError(
            "dlslime: this torch was built without Gloo, which the route gloo and collectives need"
        )
    group: Any = dist.ProcessGroupGloo
    options = group._Options()
    address = _gloo_address()
    options._devices = [group.create_device(hostname=address)]
    options._threads = 2
    options._timeout = timeout
    try:
        return group(store, rank, size, options)
    except RuntimeError as error:
        remedy = _gloo_remedy(str(error), address)
        if not remedy:
            raise
        raise RuntimeError(f"{_first_line(error)}; {remedy}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _gloo_remedy(text: str, address: str) -> str:
    if "Too many open files" in text:
        return "raise the limit of open files (ulimit -n): Gloo has a socket for each rank"
    if "connectFullMesh" in text:
        return (
            f"Gloo listens at {address} here, which the other ranks must reach: "
            "DLSLIME_SOCKET_IFNAME chooses the interface"
        )
    return ""


def _gloo_address() -> str:
    # Gloo listens at the address published to peers if a variable chooses interfaces, else at the
    # address of the host's name, as torch chooses. Debian gives that name a loopback address, which
    # ranks of other hosts can't reach.
    module = extension()
    chosen = module.own_address(anyway=False) or _address_of_host_name()
    return str(chosen or module.own_address(anyway=True))


def _address_of_host_name() -> str | None:
    """Return an address of this host's name that other hosts can reach, if there is one."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, _, _, _, place in found:
        address = str(place[0])
        usable = not ipaddress.ip_address(address.partition("%")[0]).is_loopback
        if usable and _is_of_this_host(family, address):
            return address
    return None


def _is_of_this_host(family: int, address: str) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


def make_pair_group(store: dist.Store, end: int, limit: timedelta) -> Any:
    """Make a Gloo group of two ranks, the carrier of a pair's messages on the Gloo route.

    Args:
        store: keys of the pair.
        end: rank of this process in the pair, 0 or 1.
        limit: time for connecting the two ranks; later waits have no time-out.

    Raises:
        RuntimeError: torch was built without Gloo, or the two ranks can't be connected.
    """
    group = _gloo(store, end, 2, limit)
    group._set_default_timeout(_NO_TIMEOUT)
    return group


def _make_collectives(
    options: Any,
    current: Any,
    _kept: list[Any],
    device: str,
    nonce: str,
    store: dist.Store,
    limit: timedelta,
) -> Any:
    rank, size = options.group_rank, options.group_size
    if device == "cpu":
        group = _gloo(store, rank, size, min(limit, _CONNECT_TIME))
        group._set_default_timeout(current._timeout)
        group.options.global_ranks_in_group = options.global_ranks_in_group
        group.options.group_name = options.group_id
        # From torch 2.14 on, groups number their collectives themselves.
        if torch_minor() < (2, 14):
            group._set_sequence_number_for_group()
        return group
    if device == "cuda":
        if not dist.is_nccl_available():
            raise RuntimeError("collectives of CUDA tensors go by NCCL, which this torch lacks")
        nccl_options = dist.ProcessGroupNCCL.Options()
        nccl_options._timeout = current._timeout
        nccl_options.global_ranks_in_group = options.global_ranks_in_group
        nccl_options.group_name = options.group_id
        shared = dist.PrefixStore(f"dlslime/collectives/{nonce}/{device}", options.store)
        return dist.ProcessGroupNCCL(shared, rank, size, nccl_options)
    raise RuntimeError(f"collectives on {device} tensors are not supported: use cpu or cuda")


def _with_what_is_below(store: Any) -> list[Any]:
    # Stores below a `PrefixStore` are kept as Python objects, too: a store class written in Python
    # ends with the last Python reference, even while C++ still holds the object.
    stores = [store]
    while isinstance(stores[-1], dist.PrefixStore):
        stores.append(stores[-1].underlying_store)
    return stores


def create(options: Any, backend_options: Any) -> Any:
    """Make the backend of one process group; torch calls the function on every rank of the group.

    Args:
        options: torch's `_DistributedBackendOptions`.
        backend_options: `dlslime_backend.Options`, or None for the defaults.

    Returns:
        A `dlslime_backend._C.Backend`.

    Raises:
        ImportError: the extension was built for another minor version of torch.
        TypeError: `backend_options` (`pg_options` of the caller) belong to another backend.
        ValueError: the time-out is below 1 ms or above 100 years.
    """
    try:
        return _create(options, backend_options)
    except Exception as error:
        _leave_note(options, error)
        raise


def _leave_note(options: Any, error: Exception) -> None:
    # The other ranks wait for this rank's address in the store (`FailureNote` in
    # csrc/engine/bootstrap/wire_records.h).
    text = f"DLSLIME-FAILED:{int(time.time())}:{type(error).__name__}: {_first_line(error)}"
    with contextlib.suppress(Exception):  # the store may be what failed
        options.store.set(f"dlslime/address/{options.group_rank}", text)


def _create(options: Any, backend_options: Any) -> Any:
    module = extension()
    if backend_options is None:
        chosen = module.Options()
    elif isinstance(backend_options, module.Options):
        chosen = copy.copy(backend_options)  # one object may serve several groups
    else:
        kind = type(backend_options).__name__
        raise TypeError(f"dlslime: pg_options must be dlslime_backend.Options, not {kind}")
    if not timedelta(milliseconds=1) <= options.timeout <= _LONGEST_TIMEOUT:
        raise ValueError(
            f"dlslime: a time-out of {options.timeout} for group {options.group_id!r}: it must be "
            "at least 1 ms, and at most 100 years"
        )
    if backend_options is None or chosen._timeout == module.Options()._timeout:
        chosen._timeout = options.timeout
    chosen.group_name = options.group_id
    chosen.global_ranks_in_group = options.global_ranks_in_group
    return module.Backend(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        name=options.group_id,
        options=chosen,
        make_pair_group=make_pair_group,
        make_collectives=functools.partial(
            _make_collectives, options, chosen, _with_what_is_below(options.store)
        ),
        make_child=_make_child,
    )


def _make_child(store: Any, prefix: str, rank: int, size: int, chosen: Any) -> Any:
    # Backend of a group made by torch's `split_group` or `merge_remote_group`.
    options = _options_of_torch()
    options.store = dist.PrefixStore(prefix, store)
    options.group_rank, options.group_size = rank, size
    options.timeout = chosen._timeout
    options.group_id = chosen.group_name
    options.global_ranks_in_group = chosen.global_ranks_in_group
    return create(options, chosen)


def _options_of_torch() -> Any:
    module: Any = dist.distributed_c10d
    return module._DistributedBackendOptions()


_made = itertools.count()


def make_group(
    store: Any, rank: int, size: int, timeout: timedelta, device: Any, **chosen: Any
) -> Any:
    """Make a process group outside of torch's registry, for `torch.distributed._dist2`.

    All groups of a job share `store`, so the keys of each group get a prefix with a number, counted
    per process: all ranks must make their groups in the same order.

    Args:
        store: shared by the ranks of the group.
        rank: of this process.
        size: number of ranks.
        timeout: of operations and of connecting.
        device: default device; CPU and CUDA tensors work in any case.
        chosen: arguments of `dlslime_backend.Options`, except the time-out.

    Raises:
        TypeError: `dlslime_backend.Options` has no such argument.
        ValueError: an argument has an unknown value.
    """
    own = extension().Options(timeout=timeout, **chosen)
    name = f"dist2/{next(_made)}"
    options = _options_of_torch()
    options.store = dist.PrefixStore(name, store)
    options.group_rank, options.group_size = rank, size
    options.timeout = timeout
    options.group_id = name
    backend = create(options, own)
    group: Any = dist.ProcessGroup(store, rank, size)
    custom = dist.ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(custom)
    for kind in dict.fromkeys([device.type, "cpu", "cuda"]):
        group._register_backend(torch.device(kind), custom, backend)
    group._set_group_name(name)
    group._set_group_desc(name)
    return group
