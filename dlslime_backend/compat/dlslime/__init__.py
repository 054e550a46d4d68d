"""The Python API of the original DLSlime, in all of its generations, implemented by dlslime.

With DLSLIME_PROVIDE=dlslime,slime programs write `import dlslime` or `import slime`; programs under
the user's control write `from dlslime_backend.compat import dlslime`. Each generation has a file:
`oldest`, `v0_0_1` (0.0.1.post), `v0_0_2` (pinned by LMDeploy), `today` (0.0.3 and 0.1). An endpoint
has the calls of all generations.

Differences from the original:

* every endpoint takes the best route for its pair; devices, ports, numbers of queue pairs and
  workers are hints without effect (use DLSLIME_NICS and DLSLIME_QPS_PER_NIC);
* silent failures of the original raise, in the call or in the future's `wait`. Calls that return a
  status in the original (today's sends, receives and immediates; callbacks; coroutines) return 403,
  and log the reason;
* a piece outside of its region is refused before any byte is moved;
* an endpoint that is dropped without `shutdown` releases its memory.

Transfers of GPU memory begin after the work queued before on the current stream; the argument
`stream` is ignored.
"""

from dlslime_backend.compat.dlslime.context import RDMAContext, RDMAMemoryPool, RDMAWorker
from dlslime_backend.compat.dlslime.core.assignments import Assignment
from dlslime_backend.compat.dlslime.core.futures import (
    SlimeImmRecvFuture,
    SlimeReadWriteFuture,
    SlimeRecvFuture,
    SlimeSendFuture,
)
from dlslime_backend.compat.dlslime.core.observability import (
    obs_enabled,
    obs_reset_for_test,
    obs_snapshot,
)
from dlslime_backend.compat.dlslime.devices import available_nic, discover_topology, socket_id
from dlslime_backend.compat.dlslime.endpoints import NVLinkEndpoint, RDMAEndpoint
from dlslime_backend.compat.dlslime.logs import get_logger, set_log_level
from dlslime_backend.compat.dlslime.oldest import avaliable_nic
from dlslime_backend.compat.dlslime.tcp import (
    SlimeTcpReadWriteFuture,
    SlimeTcpRecvFuture,
    SlimeTcpSendFuture,
    TcpEndpoint,
)
from dlslime_backend.compat.dlslime.v0_0_1 import OpCode
from dlslime_backend.compat.dlslime.variables import take_over

__all__ = [
    "Assignment",
    "NVLinkEndpoint",
    "OpCode",
    "RDMAContext",
    "RDMAEndpoint",
    "RDMAMemoryPool",
    "RDMAWorker",
    "SlimeImmRecvFuture",
    "SlimeReadWriteFuture",
    "SlimeRecvFuture",
    "SlimeSendFuture",
    "SlimeTcpReadWriteFuture",
    "SlimeTcpRecvFuture",
    "SlimeTcpSendFuture",
    "TcpEndpoint",
    "available_nic",
    "avaliable_nic",
    "discover_topology",
    "get_logger",
    "obs_enabled",
    "obs_reset_for_test",
    "obs_snapshot",
    "set_log_level",
    "socket_id",
]

from dlslime_backend.compat.dlslime import _slime_c  # noqa: E402, F401 - imports all names above

take_over()
