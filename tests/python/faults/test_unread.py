"""Acknowledged messages are kept, whichever guests have left or come since."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from dlslime_backend.compat.nixl import nixl_agent
from harness import await_death, await_key, dlslime_only, run_world, tell
from patterns import blank, expect_pattern, pattern
from polling import eventually
from test_endpoint import endpoint_routes, met
from test_one_sided import NBYTES, Side

pytestmark = dlslime_only


def _join(hub: str, name: str = "visitor") -> dlslime_backend.Endpoint:
    endpoint = dlslime_backend.Endpoint(name)
    endpoint.connect(bytes.fromhex(hub))
    return endpoint


def _leave(endpoint: dlslime_backend.Endpoint, how: str) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits":
        os._exit(0)
    endpoint.close()


def _guests(hub: dlslime_backend.Hub, count: int) -> list[dlslime_backend.Guest]:
    """Accept `count` guests, or as many as come within some seconds."""
    found = hub.accept()
    with contextlib.suppress(AssertionError):
        eventually(lambda: bool(found.extend(hub.accept()) or len(found) >= count))
    return found


def _told(rank: int, size: int, how: str, kind: str) -> None:
    """Rank 1 sends, sees the completion and leaves; rank 2 comes; then rank 0 looks."""
    if rank == 0:
        region = dlslime_backend.register(blank(NBYTES))
        with dlslime_backend.Hub("hub of 0") as hub:
            tell("memory", region.export().hex())
            tell("hub", hub.address.hex())
            await_key("came")
            guests = _guests(hub, 2)
            assert len(guests) == 2, "a guest that has left is forgotten, with its messages"
            for number, guest in enumerate(guests, 1):
                if kind == "immediate":
                    assert guest.expect_imm().wait(10) == number
                else:
                    message = blank(100)
                    guest.recv(message).wait(10)
                    expect_pattern(message, number)
            with pytest.raises(dist.DistBackendError):
                guests[0].recv(blank(1)).wait(10)
            tell("over")
        return
    if rank == 2:
        await_death(1) if how in ("killed", "exits") else await_key("gone")
    endpoint = _join(await_key("hub"))
    if kind == "immediate":
        mine = dlslime_backend.register(pattern(100, rank))
        theirs = dlslime_backend.import_region(bytes.fromhex(await_key("memory")))
        endpoint.write_with_imm(mine, theirs, [(0, 0, 100)], imm=rank).wait()
    else:
        endpoint.send(pattern(100, rank)).wait()
    if rank == 1:
        _leave(endpoint, how)
        tell("gone")
    else:
        tell("came")
        await_key("over")


# A send over Gloo is done when a thread of the process has the bytes: death loses the bytes.
LEAVING = [
    pytest.param(*route.values, how, id=f"{how}-{route.id}")
    for how in ("closes", "exits", "killed")
    for route in endpoint_routes.args[1]
    if how == "closes" or route.id != "gloo_route"
]


@pytest.mark.parametrize(("env", "how"), LEAVING)
@pytest.mark.parametrize("kind", ["immediate", "message"])
def test_guest_that_has_left_is_there_with_what_it_told(
    env: dict[str, str], kind: str, how: str
) -> None:
    may_die = [] if how == "closes" else [1]
    run_world(_told, 3, how, kind, env=env, init=False, may_die=may_die)


def _again(rank: int, size: int, times: int) -> None:
    """A process comes, sends a number and leaves, again and again; then the hub accepts."""
    if rank == 0:
        region = dlslime_backend.register(blank(NBYTES))
        with dlslime_backend.Hub() as hub:
            tell("memory", region.export().hex())
            tell("hub", hub.address.hex())
            await_key("left")
            guests = _guests(hub, times)
            assert [guest.expect_imm().wait(10) for guest in guests] == list(range(times))
        return
    mine = dlslime_backend.register(pattern(8))
    for number in range(times):
        endpoint = _join(await_key("hub"))
        theirs = dlslime_backend.import_region(bytes.fromhex(await_key("memory")))
        endpoint.write_with_imm(mine, theirs, [(0, 0, 8)], imm=number).wait()
        endpoint.close()
    tell("left")


@endpoint_routes
def test_numbers_of_one_that_comes_again_and_again_are_all_there(env: dict[str, str]) -> None:
    run_world(_again, 2, 10, env=env, init=False)


def _before_connect(rank: int, size: int) -> None:
    """Rank 1 sends a number and leaves before rank 0 has named its peer."""
    endpoint = dlslime_backend.Endpoint(f"endpoint {rank}")
    tell(f"address {rank}", endpoint.address.hex())
    peer = bytes.fromhex(await_key(f"address {1 - rank}"))
    if rank == 1:
        endpoint.connect(peer)
        side = Side(endpoint, 0)
        side.peer.write_with_imm(side.region, side.remote, imm=7).wait()
        endpoint.close()
        tell("gone")
        return
    Side(endpoint, 1)
    await_key("gone")
    endpoint.connect(peer)
    assert endpoint.expect_imm().wait(10) == 7
    with pytest.raises(dist.DistBackendError):
        endpoint.expect_imm().wait(10)


@endpoint_routes
def test_endpoint_that_connects_late_finds_what_its_peer_had_told(env: dict[str, str]) -> None:
    run_world(_before_connect, 2, env=env, init=False)


def _full(rank: int, size: int, most: int) -> None:
    """Rank 1 sends numbers until a number is not acknowledged, and leaves; the others are kept."""
    endpoint = met(rank)
    side = Side(endpoint, 1 - rank)
    if rank == 1:
        acknowledged = 0
        with contextlib.suppress(TimeoutError, dist.DistBackendError):
            for number in range(most):
                write = endpoint.write_with_imm(side.region, side.remote, [(0, 0, 1)], imm=number)
                write.wait(1 if acknowledged else 60)  # the first write connects
                acknowledged += 1
        endpoint.close()
        tell("acknowledged", str(acknowledged))
        return
    acknowledged = int(await_key("acknowledged"))
    assert acknowledged > 0
    found = []
    with contextlib.suppress(dist.DistBackendError):
        while len(found) < most:
            found.append(endpoint.expect_imm().wait(10))
    assert found[:acknowledged] == list(range(acknowledged)), f"{len(found)} of {acknowledged}"


@endpoint_routes
def test_number_that_finds_no_room_at_the_peer_is_not_acknowledged(env: dict[str, str]) -> None:
    small = {"DLSLIME_UNEXPECTED_LIMIT": "65536", "DLSLIME_LINGER_MS": "1"}
    run_world(_full, 2, 3000, env={**env, **small}, init=False)


def _bounded(rank: int, size: int, most: int) -> None:
    """Guests leave 60 KB each, until a guest is refused; all acknowledged messages are kept."""
    if rank == 1:
        hub = await_key("hub")
        acknowledged, refusal = 0, ""
        while acknowledged < most and not refusal:
            endpoint = _join(hub)
            try:
                endpoint.send(pattern(60_000, acknowledged)).wait(10)
                acknowledged += 1
            except (dist.DistBackendError, TimeoutError) as error:
                refusal = f"{type(error).__name__}: {error}"
            endpoint.close()
        tell("refusal", refusal)
        tell("acknowledged", str(acknowledged))
        await_key("read")
        late = _join(hub)
        late.send(pattern(60_000, most)).wait(10)
        tell("came")
        await_key("over")
        return
    with dlslime_backend.Hub() as hub:
        tell("hub", hub.address.hex())
        acknowledged = int(await_key("acknowledged", 60))
        refusal = await_key("refusal")
        assert 0 < acknowledged < most, "nothing bounds what is kept"
        assert refusal.startswith("DistBackendError"), refusal
        assert "closed" not in refusal
        guests = _guests(hub, acknowledged)
        assert len(guests) == acknowledged
        for seed, guest in enumerate(guests):
            message = blank(60_000)
            guest.recv(message).wait(10)
            expect_pattern(message, seed)
        tell("read")
        await_key("came")
        message = blank(60_000)
        (guest,) = _guests(hub, 1)
        guest.recv(message).wait(10)
        expect_pattern(message, most)
        tell("over")


def test_what_is_kept_of_guests_is_bounded_and_the_next_one_is_refused() -> None:
    env = {"DLSLIME_UNEXPECTED_LIMIT": "1000000"}
    run_world(_bounded, 2, 100, env=env, init=False)


async def _result(transfer: dlslime_backend.Transfer) -> object:
    return await transfer


def _cancelled(rank: int, size: int) -> None:
    """A number comes, and its `await` is cancelled before the event loop hears of the number."""
    side = Side(met(rank), 1 - rank)
    if rank == 0:
        await_key("waiting")
        for number in range(2):
            side.peer.write_with_imm(side.region, side.remote, imm=number).wait()
        await_key("over")
        return

    async def main() -> None:
        transfer = side.peer.expect_imm()
        task = asyncio.ensure_future(_result(transfer))
        await asyncio.sleep(0)
        tell("waiting")
        eventually(transfer.done)  # blocks the loop meanwhile
        task.cancel()
        try:
            first = await task  # the number has come before the cancellation
        except asyncio.CancelledError:
            first = await asyncio.wait_for(_result(side.peer.expect_imm()), 10)
        assert first == 0, "it is lost"
        assert await asyncio.wait_for(_result(side.peer.expect_imm()), 10) == 1

    asyncio.run(main())
    tell("over")


def test_number_that_comes_while_its_await_is_cancelled_is_the_next_ones() -> None:
    run_world(_cancelled, 2, init=False)


def _notes(agent: nixl_agent, count: int) -> dict[str, list[bytes]]:
    """Return the notifications of all agents, or as many as come within some seconds."""
    with contextlib.suppress(AssertionError):
        eventually(lambda: sum(map(len, agent.update_notifs().values())) >= count)
    return agent.notifs


@pytest.mark.parametrize("by_transfer", [False, True], ids=["alone", "after_a_transfer"])
def test_notification_of_an_agent_that_is_gone_is_there(by_transfer: bool) -> None:
    target, memory = nixl_agent("target"), torch.zeros(100, dtype=torch.uint8)
    target.register_memory(memory)
    metadata = target.get_agent_metadata()
    for number in range(3):
        agent, mine = nixl_agent(f"agent {number}"), pattern(100, number)
        agent.add_remote_agent(metadata)
        agent.register_memory(mine)
        if by_transfer:
            here, there = agent.get_xfer_descs(mine), agent.get_xfer_descs(memory)
            assert here is not None
            assert there is not None
            handle = agent.initialize_xfer("WRITE", here, there, "target", f"{number}")
            agent.transfer(handle)
            eventually(lambda a=agent, h=handle: a.check_xfer_state(h) == "DONE")  # type: ignore[misc]
        else:
            agent.send_notif("target", f"{number}")
        agent.remove_remote_agent("target")
    expected = {f"agent {number}": [b"%d" % number] for number in range(3)}
    assert _notes(target, 3) == expected


def _agents(rank: int, size: int, how: str) -> None:
    """Agents of three processes: the second notifies the first and ends, then the third does."""
    agent = nixl_agent(f"agent {rank}")
    if rank == 0:
        tell("metadata", agent.get_agent_metadata().decode())
        await_key("told")
        expected = {f"agent {other}": [b"from %d" % other, b"more"] for other in (1, 2)}
        assert _notes(agent, 4) == expected
        tell("over")
        return
    if rank == 2:
        await_death(1)
    agent.add_remote_agent(await_key("metadata").encode())
    agent.send_notif("agent 0", f"from {rank}")
    agent.send_notif("agent 0", "more")
    if rank == 1:
        agent.make_connection("agent 0")  # then earlier notifications have reached the peer
        os.kill(os.getpid(), signal.SIGKILL) if how == "killed" else os._exit(0)
    tell("told")
    await_key("over")


@pytest.mark.parametrize("how", ["killed", "exits"])
def test_notifications_of_an_agent_whose_process_ended_are_there(how: str) -> None:
    run_world(_agents, 3, how, init=False, may_die=[1])


def _renamed(rank: int, size: int) -> None:
    """An agent that starts again sends more under its old name: the older notes come first."""
    if rank == 0:
        agent = nixl_agent("target")
        tell("metadata", agent.get_agent_metadata().decode())
        await_key("told")
        assert _notes(agent, 6) == {"agent": [b"%d" % i for i in range(6)]}
        return
    metadata = await_key("metadata").encode()
    for life in range(3):
        agent = nixl_agent("agent")
        agent.add_remote_agent(metadata)
        for i in range(2):
            agent.send_notif("target", f"{2 * life + i}")
        agent.remove_remote_agent("target")
    tell("told")


def test_notifications_of_an_agent_that_starts_again_are_in_order() -> None:
    run_world(_renamed, 2, init=False)
