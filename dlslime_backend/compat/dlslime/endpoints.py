"""The endpoint classes: the calls of all generations on one pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dlslime_backend.compat.dlslime.context import RDMAContext, RDMAMemoryPool, require_link_type
from dlslime_backend.compat.dlslime.core.futures import SlimeReadWriteFuture
from dlslime_backend.compat.dlslime.core.pair import registration
from dlslime_backend.compat.dlslime.oldest import Oldest
from dlslime_backend.compat.dlslime.today import Today
from dlslime_backend.compat.dlslime.v0_0_1 import Post
from dlslime_backend.transfer import Transfer


class _Endpoint(Today, Post, Oldest):
    def register_remote_memory_region(self, *values: Any, **named: Any) -> int:
        """Take a region of the peer; see `Today` and `Oldest`."""
        if len(values) == 1 and isinstance(values[0], str) and not named:
            return self._take_regions(values[0])
        return super().register_remote_memory_region(*values, **named)


class RDMAEndpoint(_Endpoint):
    """One end of a pair, over the best route for the pair.

        RDMAEndpoint(device_name="", ib_port=1, link_type="auto", num_qp=1, worker=None)
        RDMAEndpoint(context, num_qp=1, worker=None)
        RDMAEndpoint(pool, num_qp=1, worker=None)

    Device, port, type of link, queue pairs and worker are hints without effect: see DLSLIME_NICS
    and DLSLIME_QPS_PER_NIC. Endpoints of one pool have the same regions.

    Raises:
        ValueError: the type of link is unknown.
    """

    def __init__(
        self,
        device_name: str | RDMAContext | RDMAMemoryPool = "",
        ib_port: int = 1,
        link_type: str = "auto",
        num_qp: int | None = None,
        worker: object = None,
        *,
        qp_num: int | None = None,
    ) -> None:
        if isinstance(device_name, str):
            require_link_type(link_type)
        pool = device_name if isinstance(device_name, RDMAMemoryPool) else None
        super().__init__(pool.regions if pool else None)
        self._pool = pool

    def get_pool(self) -> RDMAMemoryPool:
        """Return the memory pool of the endpoint."""
        if self._pool is None:
            self._pool = RDMAMemoryPool(regions=self._regions)
        return self._pool


class NVLinkEndpoint(_Endpoint):
    """One end of a pair, for GPUs of one host; any route is possible.

    Programs do not wait for transfers of the class: when `read` or `write` returns, the transfer
    has ended, or (with GPU memory) the current stream has been made to wait for its end.
    """

    def __init__(self, device_index: int = -1) -> None:
        super().__init__()

    def register_memory_region(self, *values: Any, **named: Any) -> int:
        """Let the peer read and write memory: (address, offset, length, name=None), in bytes.

        Or (key, address, offset, length), as in 0.0.2 and LMDeploy; an integer as the fourth value
        selects the second form.

        Returns:
            The handle: 0, 1, ...

        Raises:
            ValueError: the memory is not mapped, or the endpoint was shut down.
            TypeError: arguments are missing, unknown or given twice.
        """
        todays = len(values) == 3 or (len(values) == 4 and not isinstance(values[3], int))
        if todays and "length" not in named and "mr_key" not in named:
            address, offset, length, *name = values
            key = named.get("name", name[0] if name else None)
            return self._register(key, address + offset, length)
        key, address, length = registration(values, named)
        return self._register(key, address, length)

    def register_remote_memory_region(self, *values: Any, **named: Any) -> int:
        """Take a region of the peer: (info, name=None) or (key, info); return the handle."""
        if values and isinstance(values[0], dict):
            info = values[0]
            name = named.get("name", values[1] if len(values) > 1 else None)
            return self._remote.add(info.get("name", "") if name is None else name, info)
        return super().register_remote_memory_region(*values, **named)

    def get_mr_handle(self, name: str) -> int:
        """Return the handle of a local region, or -1."""
        return self._regions.handle(name)

    def get_remote_mr_handle(self, name: str) -> int:
        """Return the handle of a region of the peer, or -1."""
        return self._remote.handle(name)

    def read(self, assign: Iterable[Sequence[Any]], stream: object = None) -> SlimeReadWriteFuture:
        """Read assignments: (key or handle, remote key or handle, target offset, source, length).

        Raises:
            ValueError: a region is unknown (the original returned None), or a piece is outside of
                its region. Nothing is read then.
        """
        rows = list(assign)
        return self._over(self._read(rows), rows)

    def write(self, assign: Iterable[Sequence[Any]], stream: object = None) -> SlimeReadWriteFuture:
        """Write pieces; see `read`."""
        rows = list(assign)
        return self._over(self._write(rows), rows)

    def _over(self, transfer: Transfer, rows: list[Sequence[Any]]) -> SlimeReadWriteFuture:
        if any(self._regions.find(key).device.type != "cpu" for key in {row[0] for row in rows}):
            transfer.block_current_stream()
        else:
            transfer.wait()
        return SlimeReadWriteFuture(transfer, self)
