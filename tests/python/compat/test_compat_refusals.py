"""Refusals by the APIs of the original DLSlime: one clear error each, and no byte moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dlslime_backend.compat import dlslime as original
from harness import dlslime_only

pytestmark = dlslime_only

SIZE = 64


class Three:
    """An initiator, its target, and an endpoint connected to neither."""

    def __init__(self) -> None:
        self.memory = {name: torch.full((SIZE,), at) for at, name in enumerate("itx")}
        self.memory = {name: m.to(torch.uint8) for name, m in self.memory.items()}
        self.initiator, self.target, self.third = (original.RDMAEndpoint() for _ in range(3))
        ends = zip((self.initiator, self.target, self.third), self.memory.values(), strict=True)
        self.handles = [
            end.register_memory_region("cache", m.data_ptr(), 0, SIZE) for end, m in ends
        ]
        self.more = torch.zeros(8, dtype=torch.uint8)
        self.of_third = self.third.register_memory_region("more", self.more.data_ptr(), 0, 8)
        self.info = self.target.endpoint_info()
        self.there = self.initiator.register_remote_memory_region(
            "cache", self.info["mr_info"]["cache"]
        )
        self.initiator.connect(self.info)
        self.target.connect(self.initiator.endpoint_info())

    def read(self, here: Any, there: Any, target: int = 0, source: int = 0, size: int = 8) -> Any:
        """Read by the initiator, and wait until the end."""
        return self.initiator.read([(here, there, target, source, size)]).wait()

    def write(self, target: int, source: int, size: int) -> Any:
        """Write by the initiator, and wait until the end."""
        parts = [(self.handles[0], self.there, target, source, size)]
        return self.initiator.write(parts).wait()

    def expect_untouched(self) -> None:
        """Check that every byte is unchanged."""
        for at, memory in enumerate(self.memory.values()):
            assert memory.tolist() == [at] * SIZE

    def close(self) -> None:
        """End all endpoints."""
        for end in (self.initiator, self.target, self.third):
            end.shutdown()


@pytest.fixture(scope="module")
def three() -> Any:
    made = Three()
    yield made
    made.close()


def _edited(three: Three, **changes: Any) -> dict[str, Any]:
    return {**three.info, **changes}


OTHERS = {"rdma_info": [{"gid": 1, "qpn": 5}], "mr_info": {"cache": {"addr": 1, "rkey": 2}}}
REGION_OF_OTHERS = {"handle": 0, "addr": 4096, "rkey": 7, "length": 64}
# A bad call, and the text of the error.
CASES: dict[str, tuple[Callable[[Three], Any], str]] = {
    "unknown local key": (lambda t: t.read("none", t.there), "no local region 'none'"),
    "unknown local handle": (lambda t: t.read(5, t.there), "no local region 5"),
    "negative handle": (lambda t: t.read(-1, t.there), "no local region -1"),
    "handle of another endpoint": (lambda t: t.read(t.of_third, t.there), "no local region 1"),
    "unknown remote key": (lambda t: t.read(0, "none"), "no remote region 'none'"),
    "unknown remote handle": (lambda t: t.read(0, 3), "no remote region 3"),
    "beyond the remote region": (lambda t: t.read(0, 0, SIZE - 7), "remote region"),
    "beyond the local region": (lambda t: t.read(0, 0, 0, SIZE - 7), "local region"),
    "longer than both": (lambda t: t.read(0, 0, 0, 0, SIZE + 1), "region"),
    "negative offset": (lambda t: t.read(0, 0, -8), "remote region"),
    "negative length": (lambda t: t.read(0, 0, 0, 0, -8), "region|length"),
    "beyond 64 bits": (lambda t: t.read(0, 0, 1 << 70), "integer of 64 bits"),
    "write beyond the remote region": (lambda t: t.write(SIZE - 7, 0, 8), "remote region"),
    "write beyond the local region": (lambda t: t.write(0, SIZE - 7, 8), "local region"),
    "one good piece before a bad one": (
        lambda t: t.initiator.write([(0, 0, 0, 0, 8), (0, 0, SIZE, 0, 8)]).wait(),
        "remote region",
    ),
    "fields too few": (lambda t: t.initiator.read([(0, 0, 8)]), "3 fields"),
    "number of the caller's beyond 32 bits": (
        lambda t: t.initiator.write_with_imm([(0, 0, 0, 0, 8)], 1 << 32),
        "more than 32 bits",
    ),
    "info of another library": (lambda t: t.initiator.connect(OTHERS), "not of dlslime_backend"),
    "info of another version": (
        lambda t: t.third.connect(_edited(t, dlslime_backend="0.0")),
        "version",
    ),
    "info without an address": (
        lambda t: t.third.connect({k: v for k, v in t.info.items() if k != "address"}),
        "address",
    ),
    "address that is none": (lambda t: t.third.connect(_edited(t, address="AAAA")), "address"),
    "info that is no dict": (lambda t: t.third.connect(b"info"), "info"),
    "region of another library": (
        lambda t: t.initiator.register_remote_memory_region("theirs", REGION_OF_OTHERS),
        "not of dlslime_backend",
    ),
    "second connect to another peer": (
        lambda t: t.initiator.connect(t.third.endpoint_info()),
        "connected already",
    ),
    "connect to itself": (lambda t: t.third.connect(t.third.endpoint_info()), "itself"),
    "memory that is none": (
        lambda t: t.initiator.register_memory_region("hole", 4096, 0, 64),
        "no process has memory there|mapped|memory",
    ),
    "transfer before connect": (
        lambda t: t.third.read([(0, 0, 0, 0, 8)]),
        "no remote region 0|not connected",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_error_and_nothing_is_moved(case: str, three: Three) -> None:
    call, text = CASES[case]
    for at, memory in enumerate(three.memory.values()):
        memory.fill_(at)
    with pytest.raises((ValueError, OverflowError), match=text) as refused:
        call(three)
    assert "\n" not in str(refused.value).strip()
    three.expect_untouched()
    # The pair works on.
    assert three.initiator.read([(three.handles[0], three.there, 0, 0, 1)]).wait() == 0
    assert three.memory["i"].tolist() == [1, *[0] * (SIZE - 1)]


AFTER: dict[str, Callable[[Any, dict[str, Any], int], Any]] = {
    "read": lambda end, info, at: end.read([(0, 0, 0, 0, 8)]),
    "write": lambda end, info, at: end.write([(0, 0, 0, 0, 8)]),
    "write_with_imm": lambda end, info, at: end.write_with_imm([(0, 0, 0, 0, 8)], 1),
    "send": lambda end, info, at: end.send((at, 0, 8)),
    "recv": lambda end, info, at: end.recv((at, 0, 8)),
    "imm_recv": lambda end, info, at: end.imm_recv(),
    "connect": lambda end, info, at: end.connect(info),
    "register_memory_region": lambda end, info, at: end.register_memory_region("a", at, 0, 8),
}


@pytest.fixture(scope="module")
def closed() -> Any:
    made = Three()
    made.initiator.shutdown()
    yield made
    made.close()


@pytest.mark.parametrize("call", AFTER)
def test_use_after_shutdown_is_refused(call: str, closed: Three) -> None:
    with pytest.raises(ValueError, match="shut down|closed"):
        AFTER[call](closed.initiator, closed.info, closed.memory["i"].data_ptr())
    closed.expect_untouched()
