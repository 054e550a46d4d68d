"""Checks of libraries and kernel modules."""

import ctypes
import platform
from collections.abc import Callable, Iterator

import torch

from dlslime_backend import __version__
from dlslime_backend._load import built_for, extension
from dlslime_backend.cli.finding import Finding, note, problem
from dlslime_backend.cli.host import Host

MODULES = ("ib_uverbs", "mlx5_ib", "rdma_rxe", "nvidia", "nvidia_peermem", "nvidia_uvm")


def opens(library: str) -> str:
    """Return an empty text if a shared library can be opened, else the loader's reason."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return ""


def versions() -> Iterator[Finding]:
    """Report the versions, and whether the extension module loads."""
    built = ", ".join(f"{major}.{minor}" for major, minor in built_for()) or "none"
    yield Finding(
        "versions",
        f"dlslime {__version__} built for torch {built}; torch {torch.__version__}, "
        f"Python {platform.python_version()}, kernel {platform.release()}",
    )
    try:
        extension()
    except ImportError as error:
        yield problem("extension", str(error), "install a dlslime-backend for this torch")
    else:
        yield Finding("extension", "loads")
    if not torch.distributed.is_gloo_available():
        yield problem(
            "gloo",
            "this torch was built without Gloo: no collectives of CPU tensors",
            "install a torch with Gloo",
        )


def libraries(host: Host, why_not: Callable[[str], str] = opens) -> Iterator[Finding]:
    """Report the libraries that are opened at run time.

    Args:
        host: the machine.
        why_not: returns the reason why a library can't be opened, or an empty text.
    """
    reason = why_not("libibverbs.so.1")
    if not reason:
        yield Finding("libibverbs", "libibverbs.so.1 is found")
    elif host.rdma_devices():
        yield problem(
            "libibverbs",
            f"this machine has RDMA devices ({', '.join(host.rdma_devices())}), but {reason}",
            "install rdma-core in this environment or container (Debian: libibverbs1 and "
            "ibverbs-providers)",
        )
    else:
        yield note("libibverbs", f"{reason}; no RDMA device is here either")
    reason = why_not("libcuda.so.1")
    if not reason:
        yield Finding("libcuda", "libcuda.so.1 is found")
    elif torch.version.cuda and host.path("/proc/driver/nvidia/version").exists():
        yield problem(
            "libcuda",
            f"the machine has NVIDIA's kernel driver, but {reason}",
            "give the container the driver's libraries (docker run --gpus all)",
        )
    else:
        yield note("libcuda", f"{reason}: no memory of GPUs")


def modules(host: Host) -> Iterator[Finding]:
    """Report the kernel modules in use, of RDMA and of GPUs."""
    loaded = set(host.names("/sys/module"))
    found = [name for name in MODULES if name in loaded]
    yield Finding("kernel modules", ", ".join(found) or f"none of {', '.join(MODULES)}")
    # Where the module is part of the kernel, /sys/module need not name it.
    if host.rdma_devices() and not host.names("/sys/class/infiniband_verbs"):
        yield problem(
            "ib_uverbs",
            "the kernel shows RDMA devices, but not the module through which programs use them",
            "as root on the host: modprobe ib_uverbs",
        )
    if host.rdma_devices() and "nvidia" in loaded and "nvidia_peermem" not in loaded:
        yield note(
            "nvidia_peermem",
            "is not loaded: GPUDirect needs dma-buf (kernel 5.12, the open kernel modules) instead",
            "as root on the host: modprobe nvidia_peermem, if GPU memory goes through the host",
        )
