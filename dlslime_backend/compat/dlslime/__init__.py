"""The Python API of the original DLSlime, in all of its generations, on top of dlslime's own.

Programs say `import dlslime`, or `import slime`, where DLSLIME_PROVIDE=dlslime,slime is set; those
that can change an import say `from dlslime_backend.compat import dlslime`. A file for each
generation has its calls: `oldest`, `v0_0_1` (0.0.1.post), `v0_0_2` (which LMDeploy pins), `today`
(0.0.3 and 0.1). An endpoint has them all.

What is another thing here:

* every endpoint takes whatever route is best for the pair; devices, ports, numbers of queue pairs
  and workers are hints that are not needed (DLSLIME_NICS, DLSLIME_QPS_PER_NIC);
* what fails in silence there raises here, in the call or in the future's `wait`. Where the original
  returns a status (sends, receives and immediates of today's, callbacks, coroutines) it is 403, and
  the log says why;
* a piece outside of its region is refused before anything is moved;
* an endpoint that is dropped without `shutdown` gives its memory back.

Transfers of GPU memory begin when the current stream has come to them; `stream` is not looked at.
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

from dlslime_backend.compat.dlslime import _slime_c  # noqa: E402, F401 - of all the above

take_over()
