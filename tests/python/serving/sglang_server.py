"""A server of SGLang's disaggregation; test_sglang lists the real parts."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
import tomllib
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gpus
import nodes
from paths import ROOT
from patterns import expect, pattern
from wheels import FOLDER as WHEELS

VERSION = "0.5.23"
SHA256 = "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937"
# One wheel for every Python that runs the tests: only its *.py are used.
WHEEL_FOR = ["--python-version=3.11", "--implementation=cp", "--platform=manylinux_2_34_x86_64"]
FOLDER = WHEELS / f"sglang-{VERSION}"
PROJECT = ROOT / "pyproject.toml"

NAMES_ONLY = [
    "PIL",
    "pybase64",
    "sglang.srt.configs.model_config",
    "sglang.srt.mem_cache.page_interleave",
    "starlette",
    "starlette.routing",
    "torchcodec",
    "torchcodec.decoders",
    "triton",
]

LAYERS = 8  # each with pages of keys and pages of values
PAGE_BYTES = 4096
STATE_BYTES = 768
PAGES = {"prefill": 320, "decode": 290, "decode 2": 300}
AUX_ROWS = 12
Pages = list[int]
# Pages at prefill and at decode, and rows of aux data at prefill and at decode.
Request = tuple[Pages, Pages, int, int]
Requests = list[Request]


class NamesOnly(types.ModuleType):
    """A module that has every name, for an empty class."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (), {}))
        return getattr(self, name)


def find_sglang() -> None:
    """Make SGLang importable, in a process used only for SGLang."""
    for name in NAMES_ONLY:
        sys.modules[name] = NamesOnly(name)
    # A method added by transformers, which SGLang imports with its models.
    logging.Logger.warning_once = logging.Logger.warning  # type: ignore[attr-defined]
    for package in ("sglang", "sglang.srt.configs"):
        module = types.ModuleType(package)
        module.__path__ = [str(FOLDER.joinpath(*package.split(".")))]
        sys.modules[package] = module


def load_plugins_by_entry_point() -> None:
    """Let SGLang find dlslime by the entry point, as if dlslime were installed."""
    from sglang.srt.plugins import GENERAL_PLUGINS_GROUP, load_plugins

    entries = tomllib.loads(PROJECT.read_text())["project"]["entry-points"][GENERAL_PLUGINS_GROUP]
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder) / "of_a_test-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: of-a-test\nVersion: 1\n")
        lines = [f"[{GENERAL_PLUGINS_GROUP}]", *(f"{key} = {entries[key]}" for key in entries)]
        (info / "entry_points.txt").write_text("\n".join(lines))
        sys.path.append(folder)
        load_plugins()
        sys.path.remove(folder)


def server_args(mode: str, port: int, backend: str = "dlslime", device: str = "cpu") -> Any:
    """Return the parsed command line of SGLang, after SGLang's checks of disaggregation."""
    from sglang.srt.arg_groups import pd_disaggregation_hook
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    options = {
        "model-path": "none",
        "host": os.environ.get("SGLANG_HOST_IP", "127.0.0.1"),
        "device": device,
        "disaggregation-mode": mode,
        "disaggregation-transfer-backend": backend,
        "disaggregation-bootstrap-port": port,
    }
    parsed = parser.parse_args([f"--{key}={value}" for key, value in options.items()])
    arguments = ServerArgs.from_cli_args(parsed)
    pd_disaggregation_hook.handle_pd_disaggregation(arguments)
    return arguments


class Cache:
    """The memory of a server: pages of keys and values, rows of states, and aux data."""

    def __init__(self, name: str, device: str) -> None:
        from sglang.srt.disaggregation.utils import MetadataBuffers

        self.name = name

        def rows(nbytes: int) -> torch.Tensor:
            return torch.empty(PAGES[name], nbytes, dtype=torch.uint8, device=device)

        self.kv = [rows(PAGE_BYTES) for _ in range(2 * LAYERS)]
        self.state = [rows(STATE_BYTES) for _ in range(4)]
        self.metadata = MetadataBuffers(AUX_ROWS, 96, torch.bfloat16, 0)
        own = [entry for entry in vars(self.metadata).values() if isinstance(entry, torch.Tensor)]
        self.aux = [entry.view(torch.uint8) for entry in own]
        for number, tensor in enumerate(self.tensors()):
            tensor.copy_(contents(name, number, tensor))

    def tensors(self) -> list[torch.Tensor]:
        """Return all memory as bytes: rows first."""
        return [*self.kv, *self.state, *self.aux]

    def arguments(self) -> Any:
        """Return SGLang's KVArgs, as filled by SGLang's schedulers."""
        from sglang.srt.disaggregation.base.conn import StateType
        from sglang.srt.disaggregation.utils import KVClassType, TransferBackend, get_kv_class

        args = get_kv_class(TransferBackend.NIXL, KVClassType.KVARGS)()
        args.engine_rank = args.pp_rank = args.gpu_id = args.prefill_start_layer = 0
        args.system_dp_rank = 0
        args.kv_cache_dtype_str = "bfloat16"
        args.page_size = 16
        args.ib_device = args.rust_http_port = None
        args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens = _described(self.kv)
        args.kv_layer_ids = [*range(LAYERS)] * 2
        args.kv_head_num = args.total_kv_head_num = 2
        args.prefill_end_layer = LAYERS
        aux = self.metadata.get_buf_infos()
        args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens = aux
        args.state_types = [StateType.SWA]
        described = _described(self.state)
        args.state_data_ptrs, args.state_data_lens, args.state_item_lens = ([e] for e in described)
        args.state_layer_ids = [[0, 1] * 2]
        args.state_dim_per_tensor = args.state_slice_outer_counts = [[]]
        args.state_conv_shard_groups = [[]]
        args.is_hybrid_mla_backend = False
        return args

    def expect(self, *requests: Request) -> None:
        """Check that only `requests` changed bytes, by pages and aux rows of prefill and decode."""
        for number, tensor in enumerate(self.tensors()):
            expected = contents(self.name, number, tensor)
            like = torch.empty(PAGES["prefill"], tensor.shape[1]) if number < 20 else tensor
            theirs = contents("prefill", number, like)
            for there, here, aux_there, aux_here in requests:
                if number < 20:  # later tensors are aux data
                    expected[here] = theirs[there]
                else:
                    expected[aux_here] = theirs[aux_there]
            expect(tensor.cpu(), expected, f"{self.name}'s tensor {number}")


def _described(tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[int], list[int]]:
    return (
        [entry.data_ptr() for entry in tensors],
        [entry.nbytes for entry in tensors],
        [entry.stride(0) for entry in tensors],
    )


def contents(name: str, number: int, like: torch.Tensor) -> torch.Tensor:
    """Return the server's initial contents of tensor `number`."""
    return pattern(like.numel(), 50 * list(PAGES).index(name) + number).view(like.shape)


class Server:
    """The objects of a scheduler of SGLang for disaggregation."""

    def __init__(
        self,
        name: str,
        port: int,
        load: Callable[[], None] = load_plugins_by_entry_point,
        device: str = "cpu",
    ) -> None:
        find_sglang()
        load()
        self.mode = name.split()[0]
        self.address = f"{nodes.ADDRESS}:{port}"  # of prefill, which is rank 0
        args = server_args(self.mode, port, device=device)
        from sglang.srt.disaggregation.utils import DisaggregationMode, KVClassType
        from sglang.srt.managers.disagg_service import start_disagg_service
        from sglang.srt.runtime_context import get_context, get_parallel

        get_context().set_server_args(args)
        ranks = ["attn_tp_rank", "attn_cp_rank", "attn_dcp_rank", "attn_dp_rank"]
        get_parallel().override_permanently(**dict.fromkeys(ranks, 0), pp_group=None)
        if device == "cuda":
            gpus.use(0)  # late: SGLang's platform for CUDA asks for features missing here
            torch.cuda.set_device = lambda device: None
        self.bootstrap = start_disagg_service()
        self.cache = Cache(name, device)
        mode = DisaggregationMode(self.mode)
        self.manager = _kv_class(KVClassType.MANAGER)(self.cache.arguments(), mode, args, False)
        self._sender = _kv_class(KVClassType.SENDER)
        self._receiver = _kv_class(KVClassType.RECEIVER)

    def sender(self, room: int) -> Any:
        return self._sender(mgr=self.manager, bootstrap_addr=self.address, bootstrap_room=room)

    def receiver(self, room: int) -> Any:
        return self._receiver(mgr=self.manager, bootstrap_addr=self.address, bootstrap_room=room)

    def ask(self, room: int, pages: Pages, aux: int) -> Any:
        """Take decode's steps for a request, up to the wait for prefill."""
        until = time.monotonic() + 20 * nodes.PATIENCE
        while not self.manager.try_ensure_parallel_info(self.address):
            assert time.monotonic() < until, "prefill did not register in time"
            time.sleep(0.05)
        receiver = self.receiver(room)
        assert states(receiver, "Bootstrapping") == ["Bootstrapping"]
        receiver.init(prefill_dp_rank=0)
        receiver.send_metadata(indices(pages), aux, [pages])
        return receiver


def _kv_class(kind: Any) -> Any:
    from sglang.srt.disaggregation.utils import TransferBackend, get_kv_class
    from sglang.srt.runtime_context import get_disagg

    return get_kv_class(TransferBackend(get_disagg().disaggregation_transfer_backend), kind)


def indices(pages: Pages) -> Any:
    return np.array(pages, dtype=np.int32)


def states(poller: Any, last: str, seconds: float = 20 * nodes.PATIENCE) -> list[str]:
    """Poll a sender or receiver until its state is `last`; return all states seen."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    names = {value: name for name, value in vars(KVPoll).items() if isinstance(value, int)}
    seen: list[str] = []
    until = time.monotonic() + seconds
    while last not in seen:
        assert time.monotonic() < until, f"{seen} after {seconds} s, and not {last}"
        assert "Failed" not in seen, poller.kv_mgr.failure_records
        state = names[poller.poll()]
        if [state] != seen[-1:]:
            seen.append(state)
        time.sleep(0.001)
    return seen
