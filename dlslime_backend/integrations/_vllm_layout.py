"""Describes where a worker's KV cache lies in registered memory, for workers of other engines."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dlslime_backend import _untrusted, memory
from dlslime_backend._untrusted import decode_base64, fields, integer, items

_FORMAT = "dlslime vllm 3"
# Limits of a description. A description of 128 layers has some 60 KiB, and 10 KiB as text.
_MOST = 16 << 20  # bytes
MOST_TEXT = 4 << 20  # characters, compressed and encoded
_MOST_LAYERS = 4096
_MOST_REGIONS = 4096
_MOST_EXPORTED = 64 << 10  # bytes of an address or a region
_MOST_PIECES = 65536  # of a block in one layer
_MOST_NAME = 4096  # characters
_MOST_NUMBER = 2**31 - 1  # of blocks, and of tokens in a block
_MOST_SIZE = 2**63 - 1  # bytes
_DEREGISTER_TIME = 1.0  # seconds
Offsets = npt.NDArray[np.int64]


@dataclass
class Layer:
    """The blocks of a layer, in a region of registered memory.

    Block b has a piece of `nbytes` bytes at `start` + b * `stride` + each of `offsets`.
    """

    name: str
    region: int  # index in `Cache.regions`
    start: int  # offset of block 0 in the region, in bytes
    stride: int  # bytes from one block to the next
    nbytes: int  # of a piece, contiguous
    offsets: list[int]  # of the pieces, in a block
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
            integer(entry["region"], "the region of a layer", 0, _MOST_REGIONS - 1),
            integer(entry["start"], "the start of a layer", 0, _MOST_SIZE),
            integer(entry["stride"], "the stride of a layer", 0, _MOST_SIZE),
            integer(entry["nbytes"], "the size of a piece", 1, _MOST_SIZE),
            [integer(offset, "an offset", 0, _MOST_SIZE) for offset in offsets],
            _untrusted.text(entry["form"], "the form of a layer", _MOST_NAME),
        )

    def places(self, blocks: Sequence[int]) -> Offsets:
        """Return the offsets in the region of all pieces of blocks, [len(blocks) * len(offsets)].

        The pieces are in the order of the blocks, and of the offsets within a block.
        """
        starts = np.asarray(blocks, dtype=np.int64) * self.stride + self.start
        return (starts[:, None] + np.asarray(self.offsets, dtype=np.int64)).reshape(-1)


@dataclass
class Cache:
    """Description of a worker's cache; every holder can read the cache, so it is a secret."""

    hub: bytes  # address for the endpoints of readers
    regions: list[bytes]  # exported; the memory of the layers
    expired: bytes  # exported; the digests of expired leases
    num_blocks: int
    block_size: int  # tokens
    layers: list[Layer]

    def encode(self) -> str:
        """Return the description as a text for `kv_transfer_params`."""
        content = {
            **asdict(self),
            "format": _FORMAT,
            "hub": _base64(self.hub),
            "regions": [_base64(region) for region in self.regions],
            "expired": _base64(self.expired),
        }
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
            decode_base64(entry["hub"], "hub", _MOST_EXPORTED),
            [
                decode_base64(region, "a region", _MOST_EXPORTED)
                for region in items(entry["regions"], "regions", _MOST_REGIONS, 1)
            ],
            decode_base64(entry["expired"], "expired", _MOST_EXPORTED),
            integer(entry["num_blocks"], "num_blocks", 1, _MOST_NUMBER),
            integer(entry["block_size"], "block_size", 1, _MOST_NUMBER),
            [Layer.decode(layer) for layer in items(entry["layers"], "layers", _MOST_LAYERS, 1)],
        )

    def require_inside(self, sizes: Sequence[int]) -> None:
        """Require that all blocks lie in the regions, which have `sizes` bytes.

        Raises:
            ValueError: a layer is in none of the regions, or goes beyond its region.
        """
        for layer in self.layers:
            name = _untrusted.shown(layer.name)
            if layer.region >= len(sizes):
                raise ValueError(
                    f"dlslime: the layer {name} is in region {layer.region} of {len(sizes)}"
                )
            last = layer.start + layer.stride * (self.num_blocks - 1)
            end, size = last + max(layer.offsets) + layer.nbytes, sizes[layer.region]
            if end > min(size, _MOST_SIZE):
                raise ValueError(
                    f"dlslime: the layer {name} ends at byte {end} of a region of {size} bytes"
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


@dataclass
class LocalCache:
    """The cache of this worker: its description, and the registered memory of `cache.regions`."""

    cache: Cache
    regions: list[memory.Region]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def layers_of(caches: Mapping[str, torch.Tensor], config: Any) -> list[Layer]:
    """Describe the layers of vLLM's KVCacheConfig, sorted by name; see `storages` for regions.

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
    regions = {address: index for index, (address, _) in enumerate(storages(caches))}
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
        region = regions[cache.untyped_storage().data_ptr()]
        layers.append(_layer(name, region, cache, config.num_blocks, strides.get(name)))
    return layers


def _layer(
    name: str, region: int, cache: torch.Tensor, num_blocks: int, stride: int | None
) -> Layer:
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
    start = int(cache.storage_offset()) * cache.element_size()
    return Layer(name, region, start, strides[dim] * parts, nbytes, offsets, form)


def require_one_device(caches: Mapping[str, torch.Tensor]) -> None:
    """Require that all tensors are on one device.

    Raises:
        ValueError: the tensors are on several devices.
    """
    devices = {entry.device for entry in caches.values()}
    if len(devices) > 1:
        text = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"dlslime: the KV caches of one worker are on several devices: {text}")


def storages(caches: Mapping[str, torch.Tensor]) -> list[tuple[int, int]]:
    """Return (address, bytes) of every allocation behind the tensors, without duplicates.

    The regions of a worker's cache are the allocations, in this order.
    """
    found = {
        entry.untyped_storage().data_ptr(): entry.untyped_storage().nbytes()
        for entry in caches.values()
    }
    return list(found.items())


def deregister(regions: Iterable[memory.Region]) -> None:
    """Deregister regions at the end of their use; a region still in use stays registered."""
    for region in regions:
        with contextlib.suppress(ValueError, TimeoutError):
            region.deregister(_DEREGISTER_TIME)
