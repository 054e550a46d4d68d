"""Hubs: places where endpoints unknown to the process connect."""

import pytest
import torch.distributed as dist

import dlslime_backend
from harness import await_key, dlslime_only, run_world, tell
from patterns import blank, expect_pattern, pattern
from test_endpoint import endpoint_routes
from test_one_sided import NBYTES

pytestmark = dlslime_only


def _hub(rank: int, size: int) -> None:
    """All other ranks send to rank 0, get an answer, read rank 0's memory, and leave."""
    if rank > 0:
        endpoint = dlslime_backend.Endpoint(f"guest {rank}")
        endpoint.connect(bytes.fromhex(await_key("hub")))
        endpoint.send(pattern(100, rank)).wait()
        answer = blank(100)
        endpoint.recv(answer).wait()
        expect_pattern(answer, rank + 10)
        memory = blank(NBYTES)
        remote = dlslime_backend.import_region(bytes.fromhex(await_key("memory")))
        endpoint.read(dlslime_backend.register(memory), remote).wait()
        expect_pattern(memory, 0)
        endpoint.close()
        return
    region = dlslime_backend.register(pattern(NBYTES, 0))
    with dlslime_backend.Hub("hub of 0") as hub:
        tell("memory", region.export().hex())
        tell("hub", hub.address.hex())
        guests: list[dlslime_backend.Guest] = []
        while len(guests) < size - 1:
            guests += hub.accept()
        for guest in guests:
            message = blank(100)
            guest.recv(message).wait()
            (seed,) = [i for i in range(1, size) if message.equal(pattern(100, i))]
            guest.send(pattern(100, seed + 10)).wait()
        for guest in guests:
            with pytest.raises(dist.DistBackendError, match="other end .* has been closed"):
                guest.recv(blank(100)).wait()
            guest.close()
            guest.close()
    late = dlslime_backend.Endpoint()
    late.connect(hub.address)
    with pytest.raises(dist.DistBackendError, match="has been closed"):
        late.send(blank(1)).wait()


@endpoint_routes
def test_hub_takes_each_process_that_has_its_address(env: dict[str, str]) -> None:
    run_world(_hub, 4, env=env, init=False)


def test_hub_is_closed_when_it_is_dropped() -> None:
    before = dlslime_backend.Hub()
    address = before.address
    with dlslime_backend.Hub():  # the process listens on
        del before
        endpoint = dlslime_backend.Endpoint()
        endpoint.connect(address)
        with pytest.raises(dist.DistBackendError, match="has been closed"):
            endpoint.send(blank(1)).wait()


def _watched(rank: int, size: int) -> None:
    """Rank 0 watches receives of all other ranks by `ended`, and makes progress by `accept`."""
    if rank > 0:
        endpoint = dlslime_backend.Endpoint(f"guest {rank}")
        endpoint.connect(bytes.fromhex(await_key("hub")))
        endpoint.send(pattern(100, 0)).wait()
        await_key(f"go on {rank}")
        endpoint.send(pattern(100, rank)).wait()
        endpoint.close()
        return
    with dlslime_backend.Hub() as hub:
        tell("hub", hub.address.hex())
        guests: list[dlslime_backend.Guest] = []
        while len(guests) < size - 1:
            guests += hub.accept()
        for guest in guests:
            guest.recv(blank(100)).wait()
        messages = [blank(100) for _ in guests]
        receives = [guest.recv(message) for guest, message in zip(guests, messages)]
        assert not any(receive.ended for receive in receives)
        for number in range(1, size):
            tell(f"go on {number}")
            while sum(receive.ended for receive in receives) < number:
                hub.accept()
        for receive in receives:
            receive.wait(0)
        for number in range(1, size):
            assert any(message.equal(pattern(100, number)) for message in messages)
        failed = guests[0].recv(blank(100))
        while not failed.ended:  # by the end of the guest
            hub.accept()
        with pytest.raises(dist.DistBackendError, match="has been closed"):
            failed.wait(0)


@endpoint_routes
def test_receives_of_many_guests_are_watched_without_a_look_for_each(env: dict[str, str]) -> None:
    run_world(_watched, 4, env=env, init=False)
