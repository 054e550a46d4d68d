"""Describes where a worker's KV cache lies in memory, for workers of other engines."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dlslime_backend import _untrusted
from dlslime_backend._untrusted import U64, decode_base64, fields, integer, items

_FORMAT = "dlslime vllm 2"
# Limits of a description. A description of 128 layers has some 60 KiB, and 10 KiB as text.
_MOST = 16 << 20  # bytes
MOST_TEXT = 4 << 20  # characters, compressed and encoded
_MOST_LAYERS = 4096
_MOST_PIECES = 65536  # of a block in one layer
_MOST_NAME = 4096  # characters
_MOST_NUMBER = 2**31 - 1  # of blocks, and of tokens in a block
_MOST_SIZE = 2**63 - 1  # bytes
_MOST_DEVICE = 65535
Addresses = npt.NDArray[np.uint64]


@dataclass
class Layer:
    """The blocks of a layer: block b has pieces of `nbytes` bytes at `offsets` + b * `stride`."""

    name: str
    address: int
    stride: int  # bytes from one block to the next
    nbytes: int  # of a piece, contiguous
    offsets: list[int]
    form: str  # dtype, and order of the dimensions in a block

    @classmethod
    def decode(cls, found: object) -> Layer:
        """Return a layer from a decoded JSON value; the value is not trusted.

        Raises:
            ValueError: the value is no layer.
        """
        entry = fields(found, "a layer", [field.name for field in dataclasses.fields(cls)])
        name = _untrusted.text(entry["name"], "the name of a layer", _MOST_NAME)
        offsets = items(entry["offsets"], "the list of offsets", _MOST_PIECES, 1)
        return cls(
            name,
            integer(entry["address"], "the address of a layer", 0, U64),
            integer(entry["stride"], "the stride of a layer", 0, _MOST_SIZE),
            integer(entry["nbytes"], "the size of a piece", 1, _MOST_SIZE),
            [integer(offset, "an offset", 0, _MOST_SIZE) for offset in offsets],
            _untrusted.text(entry["form"], "the form of a layer", _MOST_NAME),
        )

    def addresses(self, blocks: Sequence[int]) -> Addresses:
        """Return the addresses of all pieces of blocks, uint64 [len(blocks) * len(offsets)].

        The pieces are in the order of the blocks, and of the offsets within a block.
        """
        starts = np.asarray(blocks, dtype=np.uint64) * np.uint64(self.stride)
        starts += np.uint64(self.address)
        return (starts[:, None] + np.asarray(self.offsets, dtype=np.uint64)).reshape(-1)


@dataclass
class Cache:
    """Description of a worker's cache; every holder can read the cache, so it is a secret."""

    agent: bytes  # metadata of the worker's agent
    num_blocks: int
    block_size: int  # tokens
    layers: list[Layer]
    device: int  # index of the GPU in the worker's process; -1: the cache is on CPUs
    expired: int  # address of the worker's list of requests given up, in CPU memory

    def encode(self) -> str:
        """Return the description as a text for `kv_transfer_params`."""
        agent = base64.b64encode(self.agent).decode()
        content = {**asdict(self), "format": _FORMAT, "agent": agent}
        # Layers differ in name and address only: compression leaves a tenth of their size.
        packed = zlib.compress(json.dumps(content).encode())
        return base64.b64encode(packed).decode()

    @classmethod
    def decode(cls, text: str) -> Cache:
        """Return the description from the text of `encode`; the text is not trusted.

        Raises:
            ValueError: the text is no description, or has another version.
        """
        try:
            packed = decode_base64(text, "the text", MOST_TEXT)
            content = _untrusted.decompress(packed, "the decoded text", _MOST)
            return cls._of(_untrusted.parse_json(content, most_bytes=_MOST))
        except ValueError as error:
            raise ValueError(f"dlslime: no description of a KV cache: {error}") from error

    @classmethod
    def _of(cls, found: object) -> Cache:
        _untrusted.choice(fields(found, "it", ["format"])["format"], "the format", [_FORMAT])
        entry = fields(found, "it", [field.name for field in dataclasses.fields(cls)])
        return cls(
            decode_base64(entry["agent"], "agent", _MOST),
            integer(entry["num_blocks"], "num_blocks", 1, _MOST_NUMBER),
            integer(entry["block_size"], "block_size", 1, _MOST_NUMBER),
            [Layer.decode(layer) for layer in items(entry["layers"], "layers", _MOST_LAYERS, 1)],
            integer(entry["device"], "device", -1, _MOST_DEVICE),
            integer(entry["expired"], "expired", 0, U64),
        )

    def require_like(self, other: Cache) -> None:
        """Require that the blocks of another cache can be copied into this cache byte by byte.

        Raises:
            ValueError: layers, block sizes or layouts differ; the text has both values.
        """
        pairs: list[tuple[str, Any, Any]] = [
            ("tokens of a block", self.block_size, other.block_size),
            ("layers", [x.name for x in self.layers], [x.name for x in other.layers]),
        ]
        for mine, theirs in zip(self.layers, other.layers, strict=False):
            block = f"a block of {mine.name}"
            pairs.append((block, mine.form, theirs.form))
            # The form contains both numbers, but only as a text: an untrusted description may
            # contradict its form.
            pairs.append((f"bytes of a piece of {block}", mine.nbytes, theirs.nbytes))
            pairs.append((f"pieces of {block}", len(mine.offsets), len(theirs.offsets)))
        for what, here, there in pairs:
            if here != there:
                there, here = (_untrusted.printable(str(value)) for value in (there, here))
                raise ValueError(f"dlslime: KV caches differ: {what}: {there} there, {here} here")


def layers_of(caches: Mapping[str, torch.Tensor], config: Any) -> list[Layer]:
    """Describe the layers of vLLM's KVCacheConfig, sorted by name.

    Args:
        caches: tensor of each layer, by name; further entries share the memory of a layer.
        config: a KVCacheConfig with one group.

    Raises:
        ValueError: a tensor is missing, or on another device than CPUs and CUDA GPUs; or the
            dimension of the blocks can't be determined.
    """
    strides = {
        name: placed.block_stride for placed in config.kv_cache_tensors for name in placed.layers
    }
    layers = []
    for name in sorted(config.kv_cache_groups[0].layer_names):
        if name not in caches:
            raise ValueError(f"dlslime: there is no KV cache of the layer {name}")
        cache = caches[name]
        if cache.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"dlslime: the KV cache of {name} is on {cache.device}: only tensors on CPUs and "
                "CUDA GPUs can be transferred"
            )
        layers.append(_layer(name, cache, config.num_blocks, strides.get(name)))
    return layers


def _layer(name: str, cache: torch.Tensor, num_blocks: int, stride: int | None) -> Layer:
    size, strides = list(cache.shape), [step * cache.element_size() for step in cache.stride()]
    found = [
        dim
        for dim in range(cache.dim())
        # Blocks of a kernel may be smaller than blocks of the manager: `parts` to one.
        if size[dim]
        and size[dim] % num_blocks == 0
        and stride in (None, strides[dim] * (size[dim] // num_blocks))
    ]
    if stride is None and len(found) > 1:  # only the size is known
        found = [dim for dim in found if size[dim] == num_blocks]
    if len(found) != 1:
        raise ValueError(
            f"dlslime: the KV cache of {name} has the shape {size} and strides of {strides} bytes: "
            f"{len(found)} of its dimensions can be that of {num_blocks} blocks"
        )
    (dim,) = found
    parts = size[dim] // num_blocks
    rest = [(strides[dim], parts, dim)]
    rest += [(strides[other], size[other], other) for other in range(cache.dim()) if other != dim]
    rest = sorted(entry for entry in rest if entry[1] > 1)
    nbytes, outer = cache.element_size(), []
    for step, count, _ in rest:
        if step == nbytes:
            nbytes *= count
        else:
            outer.append([step * i for i in range(count)])
    offsets = [sum(steps) for steps in itertools.product(*outer)]
    # Strides between pieces are left out of the form: they may depend on the number of blocks.
    order = [(other, count) for _, count, other in rest]
    form = f"{cache.dtype}, {nbytes} bytes together, (dimension, size) from the innermost {order}"
    return Layer(name, cache.data_ptr(), strides[dim] * parts, nbytes, offsets, form)


def device_of(caches: Mapping[str, torch.Tensor]) -> int:
    """Return the index of the GPU that holds all tensors, or -1 if they are on CPUs.

    Raises:
        ValueError: the tensors are on several devices.
    """
    devices = {entry.device for entry in caches.values()}
    if len(devices) > 1:
        text = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"dlslime: the KV caches of one worker are on several devices: {text}")
    return max((device.index or 0 for device in devices if device.type == "cuda"), default=-1)


def storages(caches: Mapping[str, torch.Tensor]) -> list[tuple[int, int]]:
    """Return (address, bytes) of every allocation behind the tensors, without duplicates."""
    found = {
        entry.untyped_storage().data_ptr(): entry.untyped_storage().nbytes()
        for entry in caches.values()
    }
    return list(found.items())
