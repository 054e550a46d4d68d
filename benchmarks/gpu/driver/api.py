"""The CUDA driver by ctypes, for programs that explore the driver without dlslime.

The library is libcuda.so.1, or the library named by DLSLIME_CUDA_LIBRARY (the tests' fake).
Functions go by the names exported from the library, which contain the version.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

SUCCESS = 0
NOT_READY = 600
DEVICE_LOCATION = 1
READ_AND_WRITE = 3
DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
FABRIC = 8
NON_BLOCKING = 1
REGISTER_PORTABLE_AND_MAPPED = 3

BUFFER_ID = 7  # of memory: CU_POINTER_ATTRIBUTE_*
LEGACY_IPC_CAPABLE, RANGE_START, RANGE_SIZE, HANDLE_TYPES = 10, 11, 12, 14
MAPPING_SIZE, MAPPING_BASE, BLOCK_ID = 18, 19, 20

ATTRIBUTES = {  # of a GPU: CU_DEVICE_ATTRIBUTE_*
    "multiprocessor_count": 16,
    "l2_cache_size": 38,
    "async_engine_count": 40,
    "can_use_host_pointer_for_registered_mem": 91,
    "host_register_supported": 99,
    "virtual_memory_management_supported": 102,
    "handle_type_posix_file_descriptor_supported": 103,
    "gpu_direct_rdma_supported": 116,
    "gpu_direct_rdma_flush_writes_options": 117,
    "gpu_direct_rdma_writes_ordering": 118,
    "can_use_stream_wait_value_nor": 123,
    "dma_buf_supported": 124,
    "handle_type_fabric_supported": 128,
}


class Handle(ctypes.Structure):
    """CUipcMemHandle, CUmemFabricHandle."""

    _fields_ = (("bytes", ctypes.c_char * 64),)


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c_int), ("id", c_int))


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", c_int))


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("windows", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes."""

    _fields_ = (("order", c_int), ("source", Location), ("target", Location), ("flags", c_uint))


_SIZES = POINTER(c_size_t)
_WORDS = POINTER(c_uint64)
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemAlloc_v2": (_WORDS, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemHostGetDevicePointer_v2": (_WORDS, c_void_p, c_uint),
    "cuPointerGetAttributes": (c_uint, POINTER(c_int), POINTER(c_void_p), c_uint64),
    "cuMemGetAddressRange_v2": (_WORDS, _SIZES, c_uint64),
    "cuMemcpyAsync": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemcpyBatchAsync": (
        *(_WORDS, _WORDS, _SIZES, c_size_t),
        *(POINTER(CopyAttributes), _SIZES, c_size_t, _SIZES, c_void_p),
    ),
    "cuStreamCreateWithPriority": (POINTER(c_void_p), c_uint, c_int),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamQuery": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWriteValue32_v2": (c_void_p, c_uint64, c_uint, c_uint),
    "cuStreamWaitValue32_v2": (c_void_p, c_uint64, c_uint, c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
    "cuIpcGetMemHandle": (POINTER(Handle), c_uint64),
    "cuIpcOpenMemHandle_v2": (_WORDS, Handle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
    "cuMemCreate": (_WORDS, c_size_t, POINTER(Properties), c_uint64),
    "cuMemRelease": (c_uint64,),
    "cuMemRetainAllocationHandle": (_WORDS, c_void_p),
    "cuMemAddressReserve": (_WORDS, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(Access), c_size_t),
    "cuMemExportToShareableHandle": (c_void_p, c_uint64, c_int, c_uint64),
    "cuMemImportFromShareableHandle": (_WORDS, c_void_p, c_int),
    "cuMemGetHandleForAddressRange": (c_void_p, c_uint64, c_size_t, c_int, c_uint64),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), c_void_p),
}


class DriverError(RuntimeError):
    """A failed call; `code` is the driver's number."""

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function}: {name}")
        self.code = code


class Driver:
    """The library with a GPU's primary context, shared with torch, current on the thread."""

    def __init__(self, device: int = 0) -> None:
        self._library = ctypes.CDLL(os.environ.get("DLSLIME_CUDA_LIBRARY") or "libcuda.so.1")
        self.device = device
        self.call("cuInit", 0)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.context = context.value
        self.enter()

    def enter(self) -> None:
        """Make the context current on the calling thread, as every thread must once."""
        self.call("cuCtxSetCurrent", self.context)

    def function(self, name: str) -> Callable[..., int]:
        """Return a function of the library; calls release the GIL and return the driver's result.

        Raises:
            AttributeError: the driver has no such function.
        """
        found = getattr(self._library, name)
        found.argtypes = SIGNATURES[name]
        found.restype = c_int
        return found  # type: ignore[no-any-return]

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            DriverError: the call failed.
        """
        code = self.function(name)(*arguments)
        if code != SUCCESS:
            raise DriverError(name, code, self.name_of(code))

    def name_of(self, code: int) -> str:
        """Return the driver's name of a result."""
        text = c_char_p()
        self.function("cuGetErrorName")(code, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {code}"

    def number(self, name: str, *arguments: Any, of: Any = c_uint64) -> int:
        """Call a function with a number or handle as first, returned argument; return the value.

        Raises:
            DriverError: the call failed.
        """
        made = of()
        self.call(name, ctypes.byref(made), *arguments)
        return int(made.value or 0)

    # --- What several programs do -------------------------------------------------------------

    def attribute(self, number: int) -> int:
        """Return an attribute of the GPU, by its number; -1 if unknown to the driver."""
        value = c_int()
        code = self.function("cuDeviceGetAttribute")(ctypes.byref(value), number, self.device)
        return value.value if code == SUCCESS else -1

    def pointer_attribute(self, number: int, pointer: int) -> int:
        """Return an attribute of memory as a number."""
        value = c_uint64()
        attributes = (c_int * 1)(number)
        values = (c_void_p * 1)(ctypes.addressof(value))
        self.call("cuPointerGetAttributes", 1, attributes, values, pointer)
        return int(value.value)

    def allocate(self, size: int) -> int:
        """Return the address of new memory."""
        return self.number("cuMemAlloc_v2", size)

    def stream(self, priority: int = 0) -> int:
        """Return a new stream, which does not wait for the default stream."""
        return self.number("cuStreamCreateWithPriority", NON_BLOCKING, priority, of=c_void_p)

    def event(self) -> int:
        """Return a new event, with times."""
        return self.number("cuEventCreate", 0, of=c_void_p)

    def address_range(self, pointer: int) -> tuple[int, int]:
        """Return the base and size of the driver's allocation around an address."""
        base, size = c_uint64(), c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), pointer)
        return base.value, size.value

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy."""
        self.call("cuMemcpyAsync", to, source, size, stream)

    def settle(self, stream: int) -> None:
        """Wait for a stream."""
        self.call("cuStreamSynchronize", stream)

    def write(self, pointer: int, content: bytes, stream: int) -> None:
        """Copy bytes to the GPU, and wait for the end."""
        source = ctypes.create_string_buffer(content, len(content))
        self.copy(pointer, ctypes.addressof(source), len(content), stream)
        self.settle(stream)

    def read(self, pointer: int, size: int, stream: int) -> bytes:
        """Return bytes from the GPU."""
        target = ctypes.create_string_buffer(size)
        self.copy(ctypes.addressof(target), pointer, size, stream)
        self.settle(stream)
        return target.raw

    def within(self, seconds: float, event: int) -> bool:
        """Tell whether an event is reached within `seconds`.

        Raises:
            DriverError: an operation before the event has failed.
        """
        end = time.monotonic() + seconds
        query = self.function("cuEventQuery")
        while (code := query(event)) == NOT_READY:
            if time.monotonic() > end:
                return False
            time.sleep(0.0005)
        if code != SUCCESS:
            raise DriverError("cuEventQuery", code, self.name_of(code))
        return True


class Batch:
    """Copies of pieces of one size, to be enqueued together, again and again.

    `flags`: 1 prefers to overlap with kernels (CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE).
    """

    def __init__(
        self,
        cuda: Driver,
        targets: Iterable[int],
        sources: Iterable[int],
        size: int,
        flags: int = 0,
    ) -> None:
        to, out_of = list(targets), list(sources)
        count = len(to)
        self._cuda = cuda
        self._targets = (c_uint64 * count)(*to)
        self._sources = (c_uint64 * count)(*out_of)
        self._sizes = (c_size_t * count)(*([size] * count))
        self._attributes = CopyAttributes(order=1, flags=flags)  # ..._SRC_ACCESS_ORDER_STREAM
        self._first, self._failed = c_size_t(0), c_size_t(0)
        self._count = count

    def enqueue(self, stream: int) -> None:
        """Enqueue the copies.

        Raises:
            DriverError: the driver refuses the batch.
            AttributeError: the driver has no batches.
        """
        self._cuda.call(
            "cuMemcpyBatchAsync",
            *(self._targets, self._sources, self._sizes, self._count),
            *(ctypes.byref(self._attributes), ctypes.byref(self._first), 1),
            *(ctypes.byref(self._failed), stream),
        )
