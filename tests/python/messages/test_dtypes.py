"""Bytes are bytes: every dtype, leaves that require grad, inference tensors."""

import pytest
import torch
import torch.distributed as dist

from harness import all_routes, run_world
from patterns import blank, expect, pattern

DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2",
]  # fmt: skip


def _of_dtype(name: str, nbytes: int, seed: int) -> torch.Tensor:
    data = pattern(nbytes, seed)
    if name == "bool":
        data &= 1  # only 0 and 1 are values of a bool
    return data.view(getattr(torch, name))


def _exchange_dtype(rank: int, size: int, name: str) -> None:
    for i, nbytes in enumerate([16, 4096, 160_000]):
        sent = _of_dtype(name, nbytes, i)
        if rank == 0:
            dist.send(sent, 1)
        else:
            received = blank(nbytes).view(sent.dtype)
            dist.recv(received, 0)
            expect(received.view(torch.uint8), sent.view(torch.uint8), f"{name} {nbytes}")


@all_routes
@pytest.mark.parametrize("name", DTYPES)
def test_dtype_arrives_bit_by_bit(env: dict[str, str], name: str) -> None:
    run_world(_exchange_dtype, 2, name, env=env)


def _dtypes_differ(rank: int, size: int) -> None:
    if rank == 0:
        dist.send(torch.arange(10, dtype=torch.int64), 1)
    else:
        received = torch.zeros(80, dtype=torch.uint8)
        dist.recv(received, 0)
        expect(received.view(torch.int64), torch.arange(10))


@all_routes
def test_receive_may_have_another_dtype_of_the_same_bytes(env: dict[str, str]) -> None:
    run_world(_dtypes_differ, 2, env=env)


def _nan_and_infinity(rank: int, size: int) -> None:
    values = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    if rank == 0:
        dist.send(values, 1)
    else:
        received = torch.zeros(4)
        dist.recv(received, 0)
        expect(received.view(torch.int32), values.view(torch.int32))


@all_routes
def test_nan_infinity_and_denormals_keep_their_bits(env: dict[str, str]) -> None:
    run_world(_nan_and_infinity, 2, env=env)


def _leaf_that_requires_grad(rank: int, size: int, numel: int) -> None:
    leaf = torch.full((numel,), float(rank + 1), requires_grad=True)
    if rank == 0:
        dist.send(leaf, 1)
        work = dist.isend(leaf * 2, 1)  # not a leaf, has a grad_fn
        work.wait()
    else:
        dist.recv(leaf, 0)
        assert leaf.requires_grad
        assert leaf.is_leaf
        assert bool((leaf == 1).all())
        work = dist.irecv(leaf, 0)
        work.wait()
        assert bool((leaf == 2).all())
        leaf.sum().backward()
        assert leaf.grad is not None
        assert bool((leaf.grad == 1).all())


@all_routes
@pytest.mark.parametrize("numel", [3, 50_000])
def test_leaf_that_requires_grad_receives(env: dict[str, str], numel: int) -> None:
    run_world(_leaf_that_requires_grad, 2, numel, env=env)


def _inference_mode(rank: int, size: int, numel: int) -> None:
    with torch.inference_mode():
        tensor = torch.full((numel,), float(rank))
        if rank == 0:
            dist.send(tensor, 1)
        else:
            assert dist.recv(tensor, 0) == 0
    if rank == 1:
        assert tensor.is_inference()
        assert bool((tensor == 0).all())
        outside = dist.irecv(tensor, 0)  # an inference tensor, but outside the mode
        outside.wait()
        assert bool((tensor == 5).all())
    else:
        dist.send(torch.full((numel,), 5.0), 1)


@all_routes
@pytest.mark.parametrize("numel", [3, 50_000])
def test_inference_tensors_send_and_receive(env: dict[str, str], numel: int) -> None:
    run_world(_inference_mode, 2, numel, env=env)


def _parameters_and_subclasses(rank: int, size: int) -> None:
    parameter = torch.nn.Parameter(torch.full((5,), float(rank)))
    if rank == 0:
        dist.send(parameter, 1)
        dist.send(parameter.data, 1)
    else:
        dist.recv(parameter.data, 0)
        assert parameter.tolist() == [0.0] * 5
        parameter.data.fill_(9)
        dist.recv(parameter, 0)
        assert parameter.tolist() == [0.0] * 5


@all_routes
def test_parameters_send_and_receive(env: dict[str, str]) -> None:
    run_world(_parameters_and_subclasses, 2, env=env)


def _conjugate(rank: int, size: int) -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    if rank == 0:
        dist.send(values.conj().resolve_conj(), 1)
        dist.send(values, 1)
    else:
        received = torch.zeros(2, dtype=torch.complex64)
        dist.recv(received, 0)
        assert received.tolist() == [1 - 2j, 3 + 4j]
        dist.recv(received, 0)
        assert received.tolist() == [1 + 2j, 3 - 4j]


@all_routes
def test_complex_values_arrive(env: dict[str, str]) -> None:
    run_world(_conjugate, 2, env=env)
