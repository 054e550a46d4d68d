"""Prepared descriptors, and transfers that can be posted repeatedly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from dlslime_backend.compat.nixl import _bindings as b
from dlslime_backend.compat.nixl._regions import Index, Integers
from dlslime_backend.compat.nixl._remote import Remote

_RELEASE_TIME = 1.0  # seconds, for a cancelled transfer to end


class nixl_prepped_dlist_handle:  # noqa: N801 (NIXL's name, as all in the module)
    """Descriptors of one agent, located in its regions; see `nixl_agent.prep_xfer_dlist`."""

    def __init__(
        self,
        remote: Remote | None,
        regions: Index,
        table: b.Table,
        whose: str,
    ) -> None:
        self.remote = remote  # None: the local side
        self.regions = regions.regions
        self.index, self.offsets = regions.locate(table, whose)
        self.lengths = table[:, 1].astype(np.int64)

    def release(self) -> None:
        """Do nothing: Python frees the handle."""

    def select(self, indices: Sequence[int] | npt.NDArray[Any]) -> Integers:
        """Return indices of descriptors as int64 [N], checked.

        Raises:
            nixlInvalidParamError: no index, or an index is out of range.
        """
        chosen = np.asarray(indices, dtype=np.int64)
        count = len(self.lengths)
        if chosen.ndim != 1 or len(chosen) == 0:
            raise b.nixlInvalidParamError("a transfer needs at least one index on either side")
        if chosen.min() < 0 or chosen.max() >= count:
            wrong = chosen[(chosen < 0) | (chosen >= count)][0]
            raise b.nixlInvalidParamError(f"index {wrong} of a list of {count} descriptors")
        return chosen


class nixl_xfer_handle:  # noqa: N801
    """A transfer, which may be posted again after its end.

    A handle that is dropped cancels its transfer, as in NIXL.
    """

    def __init__(self, remote: Remote, write: bool, parts: list[Any], note: bytes) -> None:
        self.remote = remote
        self.note = note
        self._write = write
        self._parts = parts
        self._pending: Any = None
        self._cancelled = False
        self._posted = self._begun = self._ended = 0.0

    def __del__(self) -> None:
        pending = getattr(self, "_pending", None)
        if pending is not None and not pending.done():
            pending.cancel()

    def post(self, note: bytes) -> None:
        """Begin the transfer; see `nixl_agent.transfer`."""
        if self._pending is not None and not self._pending.done():
            raise b.nixlRepostActiveError(f"the transfer with {self.remote.name} is under way")
        self.note = note or self.note
        self._cancelled, self._ended = False, 0.0
        self._begun = time.monotonic()
        try:
            self._pending = self.remote.transfer(self._write, self._parts, self.note)
        except ValueError as error:
            raise b.nixlInvalidParamError(str(error)) from error
        self._posted = time.monotonic()

    def done(self) -> bool:
        """Return whether the transfer has ended; raise the error if the transfer failed.

        Raises:
            nixlNotPostedError: the transfer was never posted.
            nixlRemoteDisconnectError: the other agent has ended or can't be reached.
            nixlCancelledError, nixlInvalidParamError, nixlBackendError: the transfer has failed.
        """
        if self._pending is None:
            raise b.nixlNotPostedError(f"the transfer with {self.remote.name} was never posted")
        if not self._pending.done():
            return False
        self._ended = self._ended or time.monotonic()
        try:
            self._pending.wait(0)
        except ValueError as error:
            raise b.nixlInvalidParamError(str(error)) from error
        except TimeoutError as error:
            raise b.nixlBackendError(str(error)) from error
        except dist.DistBackendError as error:
            kind = b.nixlCancelledError if self._cancelled else b.nixlRemoteDisconnectError
            raise kind(str(error)) from error
        return True

    def cancel(self) -> None:
        """Begin to cancel the transfer, if in progress; `done` returns or raises once it has ended.

        Does not wait, unlike NIXL's `release`.
        """
        if self._pending is not None and not self._pending.done():
            self._cancelled = True
            self._pending.cancel()

    def release(self) -> None:
        """Cancel the transfer, if in progress; after the call, the transfer touches no memory.

        Raises:
            nixlNotAllowedError: the transfer did not end within a second; call again later.
        """
        if self._pending is None or self._pending.done():
            return
        self.cancel()
        until = time.monotonic() + _RELEASE_TIME
        while not self._pending.done():
            if time.monotonic() > until:
                raise b.nixlNotAllowedError(
                    f"{self.remote.name} does not let go of the transfer; release it later"
                )
            time.sleep(0.0005)

    def telemetry(self) -> b.nixlXferTelemetry:
        """Return times and sizes; see `nixl_agent.get_xfer_telemetry`."""
        if not self.done():
            raise b.nixlNotPostedError("the transfer is still under way")
        numbers = b.nixlXferTelemetry()
        numbers.startTime = int(self._begun * 1e6)
        numbers.postDuration = int((self._posted - self._begun) * 1e6)
        numbers.xferDuration = int((self._ended - self._begun) * 1e6)
        numbers.totalBytes = sum(int(lengths.sum()) for _, _, (_, _, lengths) in self._parts)
        numbers.descCount = sum(_merged(*pieces) for _, _, pieces in self._parts)
        return numbers


def _merged(here: torch.Tensor, there: torch.Tensor, lengths: torch.Tensor) -> int:
    """Number of pieces after neighbours are merged."""
    breaks = (here[1:] != here[:-1] + lengths[:-1]) | (there[1:] != there[:-1] + lengths[:-1])
    return 1 + int(breaks.sum())


def parts_of(
    local: nixl_prepped_dlist_handle,
    local_indices: Sequence[int] | npt.NDArray[Any],
    remote: nixl_prepped_dlist_handle,
    remote_indices: Sequence[int] | npt.NDArray[Any],
) -> list[Any]:
    """Pair local and remote descriptors, and group the pairs by their regions.

    Returns:
        A list of (local region, remote region, pieces), in the form that the extension takes.

    Raises:
        nixlInvalidParamError: numbers or lengths of descriptors differ, or an index is out of
            range.
    """
    here, there = local.select(local_indices), remote.select(remote_indices)
    if len(here) != len(there):
        raise b.nixlInvalidParamError(
            f"{len(here)} local and {len(there)} remote descriptors: both numbers must be equal"
        )
    lengths = local.lengths[here]
    if not np.array_equal(lengths, remote.lengths[there]):
        first = np.flatnonzero(lengths != remote.lengths[there])[0]
        raise b.nixlInvalidParamError(
            f"pair {first} is of {lengths[first]} local and "
            f"{remote.lengths[there][first]} remote bytes: both numbers must be equal"
        )
    columns = (local.offsets[here], remote.offsets[there], lengths)
    pair = local.index[here] * len(remote.regions) + remote.index[there]
    order = np.argsort(pair, kind="stable")
    bounds = [0, *(np.flatnonzero(np.diff(pair[order])) + 1), len(order)]
    parts = []
    for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
        chosen = order[begin:end]
        mine = local.regions[local.index[here[chosen[0]]]]
        theirs = remote.regions[remote.index[there[chosen[0]]]]
        pieces = tuple(torch.from_numpy(column[chosen]) for column in columns)
        parts.append((mine._core, theirs._core, pieces))
    return parts
