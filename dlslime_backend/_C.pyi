from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend as _TorchBackend
from torch._C._distributed_c10d import ErrorType, Store

torch_version: str

class Options(_TorchBackend.Options):
    """What a group may choose; passed to init_process_group or new_group as pg_options.

    Args:
        timeout: of operations and of reaching a peer; None takes the group's timeout.
        route: "auto", "shm", "rdma" or "gloo"; empty takes DLSLIME_ROUTE.
        fallback: "warn", "allow" or "forbid"; empty takes DLSLIME_FALLBACK.

    Raises:
        ValueError: a word that is not in the list.
    """

    route: str
    fallback: str
    def __init__(
        self, timeout: timedelta | None = ..., route: str = ..., fallback: str = ...
    ) -> None: ...
    def __copy__(self) -> Options: ...
    def __deepcopy__(self, arg0: dict[Any, Any], /) -> Options: ...

class Backend(_TorchBackend):
    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        name: str,
        options: Options,
        make_pair_group: Callable[[str, int], dist.Backend],
        make_collectives: Callable[[str, str], dist.Backend],
    ) -> None: ...
    @property
    def options(self) -> Options: ...
    def get_error(self) -> ErrorType: ...
    def report(self) -> list[dict[str, Any]]: ...
    def explain_peer(self, rank: int) -> dict[str, Any]: ...
    @property
    def connections(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def listener_address(self) -> str: ...

def machine_report() -> list[tuple[str, str]]: ...
def shutdown_all() -> None: ...
