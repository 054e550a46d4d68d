"""Checks of GPUs, by the driver alone: which there are, which can read each other, GPUDirect."""

import ctypes
import re
from collections.abc import Iterator

from dlslime_backend.cli.finding import Finding, note
from dlslime_backend.cli.host import Host

_DMA_BUF_SUPPORTED = 124  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED


class Driver:
    """The calls of the CUDA driver that the doctor makes; none of them makes a context.

    Raises:
        OSError: there is no driver, or it has failed.
    """

    def __init__(self, library: str) -> None:
        self._driver = ctypes.CDLL(library)
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status != 0:
            raise OSError(f"{name} failed with {status}")

    def count(self) -> int:
        """Return the number of GPUs that this process sees."""
        number = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def name(self, device: int) -> str:
        """Return the name of a GPU."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, len(text), device)
        return text.value.decode(errors="replace")

    def exports_dma_buf(self, device: int) -> bool:
        """Return whether a NIC may be given memory of the GPU as a dma-buf."""
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), _DMA_BUF_SUPPORTED, device)
        return bool(value.value)

    def reaches(self, device: int, peer: int) -> bool:
        """Return whether a GPU can read the memory of another."""
        value = ctypes.c_int()
        self._call("cuDeviceCanAccessPeer", ctypes.byref(value), device, peer)
        return bool(value.value)


def gpus(host: Host) -> Iterator[Finding]:
    """Report the GPUs, pairs that can't reach each other, and GPUDirect."""
    library = host.variables.get("DLSLIME_CUDA_LIBRARY") or "libcuda.so.1"
    nodes = [name for name in host.names("/dev") if re.fullmatch("nvidia[0-9]+", name)]
    try:
        driver = Driver(library)
        count = driver.count()
        for device in range(count):
            yield Finding(f"GPU {device}", driver.name(device))
        yield from _pairs(driver, count)
        without = [str(device) for device in range(count) if not driver.exports_dma_buf(device)]
    except (OSError, AttributeError) as error:
        if nodes:
            yield note(
                "GPUs",
                f"/dev has {', '.join(nodes)}, but the driver can't be used: {error}",
                "give the container the driver's libraries (docker run --gpus all)",
            )
        return
    if without and "nvidia_peermem" not in host.names("/sys/module") and host.rdma_devices():
        yield note(
            "GPUDirect",
            f"GPU {', '.join(without)}: neither dma-buf nor nvidia_peermem: NICs get copies in "
            "host memory",
            "install the open kernel modules of the driver, or as root: modprobe nvidia_peermem",
        )


def _pairs(driver: Driver, count: int) -> Iterator[Finding]:
    apart = [
        f"{one} and {other}"
        for one in range(count)
        for other in range(one + 1, count)
        if not driver.reaches(one, other)
    ]
    if apart:
        yield note(
            "peer access",
            f"GPUs {', '.join(apart)} can't read each other: their messages go through host memory",
            "nvidia-smi topo -p2p r tells why; PCI switches with ACS on are the usual cause",
        )
    elif count > 1:
        yield Finding("peer access", "every GPU can read every other")
