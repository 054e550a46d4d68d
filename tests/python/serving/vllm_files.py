"""vLLM's own Python files, for tests that run vLLM's scheduler and interface of connectors.

`find_vllm` makes the files importable. Stand-ins, which have every name asked for, replace the
packages of THIRD, the modules of WHOLE (models, parsers, the server, the workers' kernels: none is
called for KV caches) and the contents of the __init__ of INIT, which import modules of WHOLE.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

from wheels import FOLDER as WHEELS
from wheels import made, python_files

VERSION = "0.33.0"
SHA256 = "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa"
# One wheel for every Python that runs the tests: only its *.py are used.
WHEEL_FOR = ["--python-version=3.11", "--implementation=cp", "--platform=manylinux_2_28_x86_64"]
FOLDER = WHEELS / f"vllm-{VERSION}"

THIRD = {
    "cachetools",
    "cbor2",
    "cloudpickle",
    "cpuinfo",
    "msgspec",
    "prometheus_client",
    "uvloop",
    "zmq",
}
INIT = {"vllm", "vllm.config", "vllm.distributed"}
WHOLE = {
    "vllm.compilation",
    "vllm.distributed.aux_output_connector",
    "vllm.distributed.ec_transfer",
    "vllm.distributed.parallel_state",
    "vllm.forward_context",
    "vllm.inputs",
    "vllm.lora",
    "vllm.model_executor",
    "vllm.multimodal",
    "vllm.outputs",
    "vllm.pooling_params",
    "vllm.sampling_params",
    "vllm.usage",
    "vllm.v1.metrics.perf",
    "vllm.v1.structured_output",
    "vllm.v1.worker",
}


def unpack() -> None:
    """Unpack vLLM's Python files into FOLDER, downloaded in the first run."""
    made(FOLDER.name, _unpack)


def _unpack(folder: Path) -> None:
    python_files(folder, f"vllm=={VERSION}", SHA256, WHEEL_FOR, ["vllm/"])


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__


class Anything(metaclass=_Anything):
    """A stand-in for every class, function and decorator; as a record, keeps its fields."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        vars(self).update(kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None: ...

    def __class_getitem__(cls, key: object) -> Any:
        return cls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args else self


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        parents = {name.rsplit(".", n)[0] for n in range(name.count(".") + 1)}
        if not (parents & (WHOLE | THIRD) or name in INIT):
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        inside = [str(FOLDER.joinpath(*name.split(".")))] if name in INIT else []
        spec.submodule_search_locations = inside
        return spec

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        inside = [Path(folder) for folder in spec.submodule_search_locations]

        def get(name: str) -> Any:
            files = [folder / entry for folder in inside for entry in (name, f"{name}.py")]
            if name.startswith("__") or any(file.exists() for file in files):
                raise AttributeError(name)
            return Anything

        module.__getattr__ = get  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


def find_vllm() -> None:
    """Make vLLM importable, in a process used only for vLLM."""
    if "vllm" in sys.modules:
        return
    sys.meta_path.insert(0, _StandIns())
    sys.path.insert(0, str(FOLDER))
    request = importlib.import_module("vllm.v1.structured_output.request")
    plain = types.SimpleNamespace(from_sampling_params=lambda params: None)
    request.StructuredOutputRequest = plain  # type: ignore[attr-defined]
