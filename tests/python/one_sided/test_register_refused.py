"""Refusals of register() and its relatives: at the call, in one short line without a handle."""

import ctypes

import numpy as np
import torch

import dlslime_backend
from dlslime_backend.compat import dlslime as original
from harness import dlslime_only, run_world
from mapped_pages import PAGE, mapped_at
from patterns import expect_pattern, pattern
from refusal import REFUSED, refused_in_a_line
from test_one_sided import side_of

pytestmark = dlslime_only


def _nothing_of_it(rank: int, size: int) -> None:
    memory = pattern(PAGE)
    address = memory.data_ptr()
    region = dlslime_backend.register(memory)
    remote = dlslime_backend.import_region(region.export())
    sparse = torch.eye(3).to_sparse()
    for wrong in (
        *(None, 5, 5.0, "ab", {address, 8}, {address: 1, 8: 2}, iter([address, 8]), range(7, 9)),
        *((), (address,), (address, 8, "name"), (address, 8, 0), [1, 2, 3], [[address, 8]]),
        *((float(address), 8.0), (address, "8"), (None, 8), (address, None), (memory, 8)),
        *(list(range(1_000_000)), tuple(range(1_000_000)), "x" * 1_000_000),
        *(region, remote, object(), len, dlslime_backend),
        np.zeros(10)[::2],
        np.zeros((4, 4)).T,
        np.array([object(), object()]),
        np.array(["a", "b"], dtype=object),
        memoryview(bytearray(8))[::2],
        *(memory[::2], torch.zeros(3, 4).t(), torch.zeros(3, device="meta"), sparse),
    ):
        what = f"{type(wrong).__name__} {str(wrong)[:30]}"
        refused_in_a_line(lambda wrong=wrong: dlslime_backend.register(wrong), what)


def test_what_is_no_memory_is_refused_in_a_line() -> None:
    run_world(_nothing_of_it, 1)


def _no_such_place(rank: int, size: int) -> None:
    memory = pattern(PAGE)
    address, far = memory.data_ptr(), 2**64
    for pair in (
        *((0, 8), (-1, 8), (-far, 8), (far, 8), (far + address, 8)),
        *((address, -1), (address, -far), (address, far), (address, far - address)),
        *((address, far - address + 1), (far - 8, 16), (address, 2**63), (2**63, 8)),
        *((address, 2**62), (far - PAGE, PAGE)),
    ):
        text = refused_in_a_line(lambda pair=pair: dlslime_backend.register(pair), pair)
        assert str(pair[0]) in text or hex(pair[0]) in text, text
        assert str(pair[1]) in text, text


def test_address_and_bytes_that_cannot_be_are_refused_with_both_numbers() -> None:
    run_world(_no_such_place, 1)


def _nothing_there(rank: int, size: int) -> None:
    """Valid addresses of a program without mapped memory are refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    protection, flags = 3, 0x22  # to read and to write; private and of no file
    hole = libc.mmap(None, ctypes.c_size_t(3 * PAGE), protection, flags, -1, ctypes.c_long(0))
    assert libc.munmap(ctypes.c_void_p(hole + PAGE), ctypes.c_size_t(PAGE)) == 0
    assert not mapped_at(hole + PAGE)
    assert dlslime_backend.register((hole, PAGE)).nbytes == PAGE
    for pair in ((hole + PAGE, 8), (hole, PAGE + 1), (hole, 3 * PAGE), (PAGE, 8)):
        text = refused_in_a_line(lambda pair=pair: dlslime_backend.register(pair), pair)
        assert "mapped" in text, text


def test_addresses_where_nothing_is_mapped_are_refused() -> None:
    run_world(_nothing_there, 1)


def _wrong_names(rank: int, size: int) -> None:
    memory = pattern(PAGE)
    for name in (7, b"kv", None, memory):
        refused_in_a_line(lambda name=name: dlslime_backend.register(memory, name=name), "a name")


def test_names_that_are_no_texts_are_refused_in_a_line() -> None:
    run_world(_wrong_names, 1)


def _handles(rank: int, size: int) -> None:
    """Refusals of handles and addresses as wrong arguments, and of arguments instead of handles."""
    memory = pattern(PAGE)
    region = dlslime_backend.register(memory, "kv")
    handle = region.export()
    remote = dlslime_backend.import_region(handle)
    peer = dlslime_backend.peer(rank)
    endpoint, other = dlslime_backend.Endpoint("one"), dlslime_backend.Endpoint("other")
    address = other.address
    pieces = [(0, 0, 1)] * 100_000
    text = handle.decode("latin1")
    for what, call in {
        "import a text": lambda: dlslime_backend.import_region(text),
        "import numbers": lambda: dlslime_backend.import_region(list(handle)),
        "import a part": lambda: dlslime_backend.import_region(handle[:-1]),
        "import an array": lambda: dlslime_backend.import_region(np.zeros(1_000_000)),
        "import an address": lambda: dlslime_backend.import_region(address),
        "connect to a text": lambda: endpoint.connect(address.decode("latin1")),
        "connect to numbers": lambda: endpoint.connect(list(address)),
        "connect to a region": lambda: endpoint.connect(handle),
        "register a text": lambda: dlslime_backend.register(text),
        "a handle for a remote region": lambda: peer.read(region, handle),
        "a handle for a local region": lambda: peer.write(handle, remote),
        "regions the other way round": lambda: peer.read(remote, region, pieces),
        "prepared the other way round": lambda: peer.prepare_read(remote, region, pieces),
        "parts the other way round": lambda: peer.read_many([(remote, region, pieces)]),
        "a handle as an offset": lambda: peer.read(region, remote, [(handle, 0, 8)]),
        "handles as a batch": lambda: peer.read(region, remote, (handle, handle, 8)),
        "a handle for pieces": lambda: peer.read(region, remote, handle),
        "a handle as a name": lambda: dlslime_backend.register(memory, name=handle),
        "a handle as a rank": lambda: dlslime_backend.peer(handle),
        "a handle as an immediate": lambda: peer.write_with_imm(region, remote, imm=handle),
    }.items():
        refused_in_a_line(call, what, handle, address)
    endpoint.close()
    other.close()


def test_no_refusal_prints_a_handle() -> None:
    run_world(_handles, 1)


def _bytes_like(rank: int, size: int) -> None:
    """A handle from a socket may be in a bytearray, or in a part of a buffer."""
    memory = pattern(PAGE)
    handle = dlslime_backend.register(memory, "kv").export()
    for form in (bytearray(handle), memoryview(b"xx" + handle)[2:]):
        try:
            assert dlslime_backend.import_region(form).name == "kv"
        except REFUSED:
            refused_in_a_line(lambda form=form: dlslime_backend.import_region(form), form, handle)


def test_handles_in_other_buffers_are_taken_or_refused_in_a_line() -> None:
    run_world(_bytes_like, 1)


def _numbers(rank: int, size: int) -> None:
    side = side_of(rank, other=rank)
    region, large, far = side.region, np.zeros(1_000_000), 2**64
    for what, call in {
        "a part that begins before it": lambda: region.bytes_at(-1, 8),
        "a part of minus one": lambda: region.bytes_at(0, -1),
        "a part beyond 64 bits": lambda: region.bytes_at(far, 8),
        "a part by a fraction": lambda: region.bytes_at(0.5, 8),
        "a rank of 41 bits": lambda: dlslime_backend.peer(2**40),
        "a rank that is a fraction": lambda: dlslime_backend.peer(0.5),
        "a page of 64 bits": lambda: side.read((np.zeros(1, int), np.zeros(1, int), 2**63)),
        "a page of 65 bits": lambda: side.read((np.zeros(1, int), np.zeros(1, int), far)),
        "an offset of 65 bits": lambda: side.read([(far, 0, 8)]),
        "a text as an offset": lambda: side.read([("x" * 1_000_000, 0, 8)]),
        "an array as an offset": lambda: side.read([(large, 0, 8)]),
        "a list as a piece": lambda: side.read([list(range(1_000_000))]),
        "texts as a batch": lambda: side.read(("x" * 1_000_000, "y", 8)),
        "a number for pieces": lambda: side.read(5),
        "a text as an immediate": lambda: side.peer.write_with_imm(region, side.remote, imm="x"),
        "a text as a tag": lambda: side.peer.send(side.memory, "x"),
        "an array that is sent": lambda: side.peer.send(large),
        "a list that is received into": lambda: side.peer.recv([1, 2]),
    }.items():
        refused_in_a_line(call, what)
    expect_pattern(side.memory, rank)


def test_numbers_that_cannot_be_are_refused_in_a_line() -> None:
    run_world(_numbers, 1)


def _original(rank: int, size: int) -> None:
    """The original library's API takes addresses, too."""
    endpoint, memory = original.RDMAEndpoint(), pattern(PAGE)
    address = memory.data_ptr()
    for arguments in (
        *((0, 0, 8), (address, -2 * address, 8), (address, 0, -1), (address, 0, 2**63)),
        *((address, 2**64, 8), (address, 0, 8.0), (float(address), 0, 8)),
    ):
        refused_in_a_line(
            lambda arguments=arguments: endpoint.register_memory_region("key", *arguments),
            arguments,
        )
    assert endpoint.register_memory_region("key", address, 0, PAGE) == 0
    endpoint.shutdown()


def test_addresses_of_the_original_api_are_checked() -> None:
    run_world(_original, 1)
