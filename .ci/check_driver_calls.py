#!/usr/bin/env python3
"""Write C++ that compares gpu_check's declarations of the CUDA driver with NVIDIA's header.

.ci/lint compiles the output: a parameter that is missing or has another size is an error. Programs
for a borrowed machine with GPUs run once, and can't be corrected on the machine.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu.driver import api  # noqa: E402

# A newer toolkit's header declares another version under the plain name; the versions named below
# are exported.
FORMS = {
    "cuMemcpyBatchAsync": "PFN_cuMemcpyBatchAsync_v12080",
    "cuEventElapsedTime": "PFN_cuEventElapsedTime_v2000",
}
STRUCTURES = {
    "CUipcMemHandle": api.Handle,
    "CUmemLocation": api.Location,
    "CUmemAccessDesc": api.Access,
    "CUmemAllocationProp": api.Properties,
    "CUmemcpyAttributes": api.CopyAttributes,
}
VALUES = {
    "CUDA_ERROR_NOT_READY": api.NOT_READY,
    "CU_MEM_LOCATION_TYPE_DEVICE": api.DEVICE_LOCATION,
    "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": api.READ_AND_WRITE,
    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": api.DESCRIPTOR,
    "CU_MEM_HANDLE_TYPE_FABRIC": api.FABRIC,
    "CU_STREAM_WAIT_VALUE_GEQ": 0,
    "CU_STREAM_NON_BLOCKING": api.NON_BLOCKING,
    "CU_MEMHOSTREGISTER_PORTABLE + CU_MEMHOSTREGISTER_DEVICEMAP": api.REGISTER_PORTABLE_AND_MAPPED,
    "CU_POINTER_ATTRIBUTE_BUFFER_ID": api.BUFFER_ID,
    "CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE": api.LEGACY_IPC_CAPABLE,
    "CU_POINTER_ATTRIBUTE_RANGE_START_ADDR": api.RANGE_START,
    "CU_POINTER_ATTRIBUTE_RANGE_SIZE": api.RANGE_SIZE,
    "CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES": api.HANDLE_TYPES,
    "CU_POINTER_ATTRIBUTE_MAPPING_SIZE": api.MAPPING_SIZE,
    "CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR": api.MAPPING_BASE,
    "CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID": api.BLOCK_ID,
    "CU_MEM_ALLOCATION_TYPE_PINNED": 1,
    "CU_MEMCPY_SRC_ACCESS_ORDER_STREAM": 1,
    **{f"CU_DEVICE_ATTRIBUTE_{name.upper()}": value for name, value in api.ATTRIBUTES.items()},
}
PROTOTYPE = ROOT / "benchmarks" / "gpu" / "committed" / "driver.cpp"
BINDING = re.compile(r'bind\(library, "(\w+)", made\.(\w+)\)')

HEAD = """
#include <cuda.h>
#include <cudaTypedefs.h>
#include "committed/driver.h"
#include "same_form.h"
"""


def cpp_type(argument: Any) -> str:
    """Return a C++ type with the calling convention of a ctypes type."""
    if issubclass(argument, ctypes.Structure):
        return next(name for name, ours in STRUCTURES.items() if ours is argument)
    if issubclass(argument, (ctypes.c_void_p, ctypes.c_char_p, ctypes._Pointer)):
        return "void*"
    return {4: "int", 8: "long long"}[ctypes.sizeof(argument)]


def form_of(name: str) -> str:
    """Return the type of the header's function."""
    return FORMS.get(name, f"decltype(&{name})")


def lines() -> list[str]:
    """Return the lines of the C++ source: includes and assertions."""
    out = [HEAD]
    for name, arguments in api.SIGNATURES.items():
        ours = ", ".join(cpp_type(argument) for argument in arguments)
        out.append(f'static_assert(SameForm<int (*)({ours}), {form_of(name)}>::value, "{name}");')
    for name, member in BINDING.findall(PROTOTYPE.read_text()):
        ours = f"decltype(committed::Driver::{member})"
        out.append(f'static_assert(SameForm<{ours}, {form_of(name)}>::value, "{name}");')
    for name, structure in STRUCTURES.items():
        out.append(f"static_assert(sizeof({name}) == {ctypes.sizeof(structure)});")
    for name, value in VALUES.items():
        out.append(f"static_assert(static_cast<int>({name}) == {value});")
    return out


if __name__ == "__main__":
    print("\n".join(lines()))
