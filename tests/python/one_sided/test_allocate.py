"""allocate_tensor(): CPU tensors in memory that other processes of the host can map."""

import contextlib
import gc
import os
import threading

import pytest
import torch
import torch.distributed as dist

from harness import dlslime_only, run_world
from patterns import blank, expect_pattern, pattern
from test_fork import fork_and_run

pytestmark = dlslime_only

CPU = torch.device("cpu")


def _backend() -> torch._C._distributed_c10d.Backend:
    return dist.group.WORLD._get_backend(CPU)


def _descriptors() -> int:
    """Count the descriptors of shared memory, among them the rings of other processes."""
    kinds = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            kinds.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(kind.startswith("/memfd:dlslime") for kind in kinds)


def _shared(tensor: torch.Tensor) -> bool:
    """Tell whether the tensor is in a shared mapping of the process."""
    address = tensor.data_ptr()
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            extent, permissions, *_ = line.split()
            first, last = (int(number, 16) for number in extent.split("-"))
            if first <= address < last:
                return permissions[3] == "s"
    return False


def _kinds(rank: int, size: int) -> None:
    backend = _backend()
    assert backend.supports_tensor_alloc(CPU)
    assert not backend.supports_tensor_alloc(torch.device("cuda:0"))
    for dtype in (torch.uint8, torch.bfloat16, torch.float64, torch.complex64):
        tensor = backend.allocate_tensor(1000, dtype=dtype, device=CPU)
        assert (tensor.shape, tensor.dtype, tensor.device) == ((1000,), dtype, CPU)
        assert not tensor.any()
        assert _shared(tensor)
    assert backend.allocate_tensor(0, dtype=torch.int8, device=CPU).numel() == 0
    assert _shared(backend.allocate_tensor(8, dtype=torch.int8, device=torch.device("cpu:0")))
    # A device given by number only may be meant for a GPU.
    elsewhere = backend.allocate_tensor(8, dtype=torch.int8, device=torch.device("meta"))
    assert elsewhere.device.type == "meta"


def test_tensors_of_all_kinds_are_zeros_in_shared_memory() -> None:
    run_world(_kinds, 1)


def _messages(rank: int, size: int) -> None:
    nbytes = 300_000
    sent = _backend().allocate_tensor(nbytes, dtype=torch.uint8, device=CPU)
    received = _backend().allocate_tensor(nbytes, dtype=torch.uint8, device=CPU)
    sent.copy_(pattern(nbytes, rank))
    work = dist.irecv(received, 1 - rank)
    dist.send(sent, 1 - rank)
    work.wait()
    expect_pattern(received, 1 - rank)
    plain = blank(nbytes)
    plain.copy_(received)
    dist.all_reduce(received)
    expect_pattern(plain, 1 - rank)


def test_messages_and_collectives_take_them() -> None:
    run_world(_messages, 2)


def _given_back(rank: int, size: int) -> None:
    backend = _backend()
    before = _descriptors()
    kept = [backend.allocate_tensor(10_000, dtype=torch.uint8, device=CPU) for _ in range(50)]
    assert _descriptors() == before + len(kept)
    view = kept[7][5_000:]
    view.fill_(3)
    kept.clear()
    gc.collect()
    assert _descriptors() == before + 1
    assert view.eq(3).all()
    dist.destroy_process_group()
    assert view.eq(3).all()


def test_memory_goes_with_the_last_view_of_it() -> None:
    run_world(_given_back, 1)


def _refused(rank: int, size: int) -> None:
    backend = _backend()
    with pytest.raises(ValueError, match="elements can't be made"):
        backend.allocate_tensor(-1, dtype=torch.uint8, device=CPU)
    with pytest.raises(ValueError, match="elements can't be made"):
        backend.allocate_tensor(2**61, dtype=torch.float64, device=CPU)
    with pytest.raises(RuntimeError, match="shared segment"):
        backend.allocate_tensor(2**60, dtype=torch.uint8, device=CPU)


def _forked(rank: int, size: int) -> None:
    """Children forked while other threads allocate drop the tensors inherited."""
    kept = [_backend().allocate_tensor(8, dtype=torch.uint8, device=CPU) for _ in range(3)]
    stop = threading.Event()

    def allocate() -> None:
        while not stop.is_set():
            _backend().allocate_tensor(8, dtype=torch.uint8, device=CPU)

    def let_go() -> None:
        kept.clear()
        with pytest.raises(RuntimeError, match="fork"):
            _backend().allocate_tensor(8, dtype=torch.uint8, device=CPU)

    threads = [threading.Thread(target=allocate) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert [fork_and_run(let_go) for _ in range(100)] == [0] * 100
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_forked_children_let_go_of_them() -> None:
    run_world(_forked, 1, fresh=True, timeout=300)


def test_what_cant_be_made_is_an_error() -> None:
    run_world(_refused, 1)
