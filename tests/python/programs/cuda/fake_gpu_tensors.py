"""Tensors on a fake GPU, and dlslime's answers about fake tensors; run by test_fake_gpu."""

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import ctypes

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
import fake_gpu


def _operators() -> None:
    there = torch.arange(12, device="cuda").reshape(3, 4)
    assert there.is_cuda
    assert str(there.device) == "cuda:0"
    here = torch.arange(12).reshape(3, 4)
    assert torch.equal(there.cpu(), here)
    assert torch.equal(there[1:, 2].cpu(), here[1:, 2])
    assert torch.equal(there.t().contiguous().cpu(), here.t())
    values = torch.randn(5, 5)
    other = values.to("cuda:1")
    assert torch.allclose((other @ other + 1).cpu(), values @ values + 1)
    other.zero_()[2, 3] = 7
    assert other.sum().item() == 7


def _streams() -> None:
    stream = torch.Stream(device="cuda:0")
    source = torch.ones(1000, device="cuda")
    assert source.sum().item() == 1000  # waits for the default stream, which filled the tensor
    with fake_gpu.on(stream):
        target = torch.zeros(1000, device="cuda")
        for _ in range(20):  # each begins late: the host is ahead
            target.copy_(source, non_blocking=True)
    stream.synchronize()
    assert stream.query()
    assert target.sum().item() == 1000


def _copies_do_not_block_the_host() -> None:
    """Copies between GPUs never block the host, for any dtype and strides; `.cpu()` does."""
    driver = ctypes.CDLL(os.environ["DLSLIME_CUDA_LIBRARY"])
    context, word = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuMemHostRegister_v2(word, ctypes.c_size_t(4096), 3) == 0
    stream = torch.Stream(device="cuda:0")
    source = torch.arange(6, device="cuda").view(2, 3)
    assert source.sum().item() == 15  # waits for the default stream
    with fake_gpu.on(stream):
        address = ctypes.c_uint64(ctypes.addressof(word))
        held = ctypes.c_void_p(stream.stream_id)
        assert driver.cuStreamWaitValue32_v2(held, address, 1, 0) == 0
        targets = [
            torch.zeros_like(source).copy_(source),
            torch.zeros(2, 3, device="cuda").copy_(source),
            torch.zeros(3, 2, device="cuda").t().copy_(source),
            torch.zeros(4, 2, 3, device="cuda").copy_(source)[3],
        ]
        filled = torch.full((7,), 3, device="cuda")
        assert not stream.query()
        timer = threading.Timer(0.2, lambda: word.__setitem__(0, b"\1"))
        timer.start()
        assert all(torch.equal(target.cpu().long(), source.cpu()) for target in targets)
        assert filled.cpu().eq(3).all()
        assert timer.finished.is_set()


def _memory(extension: object) -> None:
    small = torch.empty(100, device="cuda")
    neighbour = torch.empty(100, device="cuda")
    assert abs(small.data_ptr() - neighbour.data_ptr()) == 512  # of one allocation
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(small.data_ptr(), 1)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV, "a processor could read it"


def _dlslime() -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = dist.HashStore()
    dist.init_process_group(backend="dlslime", store=store, rank=0, world_size=1)
    tensor = torch.ones(4, device="cuda:1")
    region = dlslime_backend.register(tensor)
    assert region.device == tensor.device
    region.deregister()
    with pytest.raises(RuntimeError, match="CUDA tensors go by NCCL, which this torch lacks"):
        dist.all_reduce(tensor)
    received = torch.zeros(4)
    work = dist.irecv(received, 0)  # the group works on
    dist.isend(tensor.cpu(), 0).wait()
    work.wait()
    assert received.sum() == 4
    dist.destroy_process_group()


if __name__ == "__main__":
    device = fake_gpu.use()
    _operators()
    _streams()
    _copies_do_not_block_the_host()
    _memory(device)
    _dlslime()
    print("all right")
