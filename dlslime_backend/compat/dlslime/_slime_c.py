"""The original's extension module: the names of the package, and a few more."""

from dlslime_backend.compat.dlslime import *  # noqa: F403 - an alias of the package
from dlslime_backend.compat.dlslime.rdma_buffer import rdma_buffer as rdma_buffer
from dlslime_backend.compat.dlslime.rdma_buffer import rdma_endpoint as rdma_endpoint

_BUILD_RDMA = True
_BUILD_TCP = True
_BUILD_NVLINK = True
_BUILD_RPC = False
_BUILD_INTRA_OPS = False
_BUILD_INTER_OPS = False
_BUILD_ASCEND_DIRECT = False
