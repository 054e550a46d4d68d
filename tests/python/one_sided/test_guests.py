"""Guests of a hub: how long guests stay, how many may come; and errors' texts about pairs."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable

import pytest
import torch.distributed as dist

import dlslime_backend
from dlslime_backend.compat.nixl import nixl_agent
from harness import await_key, dlslime_only, run_world, sync, tell
from patterns import blank, expect_pattern, pattern
from polling import eventually
from test_endpoint import endpoint_routes, met
from test_one_sided import NBYTES, Side, side_of

pytestmark = dlslime_only

MOST_WAITING = 1024
# Numbers that no caller has given: tags from 2^31 on are dlslime's own, as are a pair's ranks.
INTERNAL = re.compile(r"\btag [2-4]\d{9}\b|0x[89a-fc]0000000|\brank [01]\b")


def _come(hub: bytes, name: str = "visitor") -> dlslime_backend.Endpoint:
    endpoint = dlslime_backend.Endpoint(name)
    endpoint.connect(hub)
    return endpoint


def _accepted(hub: dlslime_backend.Hub, count: int = 1) -> list[dlslime_backend.Guest]:
    guests: list[dlslime_backend.Guest] = []
    eventually(lambda: bool(guests.extend(hub.accept()) or len(guests) >= count))
    return guests


# --- Guests stay until leaving or being closed ---


def _dropped(rank: int, size: int, accepted: bool) -> None:
    """Rank 1 reads and writes rank 0's memory; rank 0 drops the guest, or never accepts."""
    if rank == 0:
        memory = pattern(NBYTES, 0)
        region = dlslime_backend.register(memory)
        with dlslime_backend.Hub() as hub:
            tell("memory", region.export().hex())
            tell("hub", hub.address.hex())
            await_key("read")
            if accepted:
                del [_accepted(hub)][0]
            gc.collect()
            tell("dropped")
            await_key("written")
            expect_pattern(memory[:100], 1)
            assert len(hub.accept()) == int(not accepted), "an accepted guest is returned once"
        await_key("told")
        return
    endpoint = _come(bytes.fromhex(await_key("hub")))
    memory = pattern(NBYTES, 1)
    mine = dlslime_backend.register(memory)
    theirs = dlslime_backend.import_region(bytes.fromhex(await_key("memory")))
    endpoint.read(mine, theirs, [(200, 0, 100)]).wait()
    tell("read")
    await_key("dropped")
    endpoint.read(mine, theirs, [(300, 0, 100)]).wait()
    endpoint.write(mine, theirs, [(0, 0, 100)]).wait()
    expect_pattern(memory[300:400], 0)
    tell("written")
    # The close of the hub closes the guests that rank 0 no longer holds.
    with pytest.raises(dist.DistBackendError, match="has been closed"):
        endpoint.recv(blank(1)).wait(20)
    tell("told")


@endpoint_routes
@pytest.mark.parametrize("accepted", [False, True], ids=["never_accepted", "accepted_and_dropped"])
def test_guest_that_is_not_held_stays_until_the_hub_is_closed(
    env: dict[str, str], accepted: bool
) -> None:
    run_world(_dropped, 2, accepted, env=env, init=False)


def _held(rank: int, size: int) -> None:
    """A held guest stays when the hub is closed, until the guest is closed."""
    if rank == 0:
        hub = dlslime_backend.Hub()
        tell("hub", hub.address.hex())
        (guest,) = _accepted(hub)
        hub.close()
        message = blank(100)
        guest.recv(message).wait()
        expect_pattern(message, 1)
        guest.send(pattern(100, 2)).wait()
        guest.close()
        await_key("told")
        return
    endpoint = _come(bytes.fromhex(await_key("hub")))
    endpoint.send(pattern(100, 1)).wait()
    answer = blank(100)
    endpoint.recv(answer).wait()
    expect_pattern(answer, 2)
    with pytest.raises(dist.DistBackendError, match="has been closed"):
        endpoint.recv(blank(1)).wait(20)
    tell("told")


@endpoint_routes
def test_guest_that_is_held_outlives_the_hub(env: dict[str, str]) -> None:
    run_world(_held, 2, env=env, init=False)


def _many_dropped(rank: int, size: int, times: int) -> None:
    """Dropped guests are forgotten when they leave: neither guests nor messages remain."""
    if rank == 1:
        address = bytes.fromhex(await_key("hub"))
        for number in range(times):
            with _come(address) as endpoint:
                endpoint.send(pattern(30_000)).wait(10)
                await_key(f"dropped {number}")
        tell("left")
        return
    hub = dlslime_backend.Hub()
    dist.init_process_group("dlslime", store=dist.HashStore(), rank=0, world_size=1)
    tell("hub", hub.address.hex())
    for number in range(times):
        assert len(_accepted(hub)) == 1
        tell(f"dropped {number}")
    await_key("left")

    def forgotten() -> bool:
        hub.accept()
        # The process's own, the hub's, and a few with an end not seen yet.
        return int(dlslime_backend.stats()["process"]["groups"]) <= 5

    eventually(forgotten)


def test_dropped_guests_are_forgotten_when_they_leave() -> None:
    env = {"DLSLIME_UNEXPECTED_LIMIT": "1000000"}  # all guests together leave more
    run_world(_many_dropped, 2, 100, env=env, init=False, fresh=True)


# --- Guests that can't come get the reason ---


def test_guest_that_is_one_too_many_is_told_so_and_may_come_later() -> None:
    with dlslime_backend.Hub() as hub:
        visitors = [_come(hub.address) for _ in range(MOST_WAITING)]
        for send in [visitor.send(blank(1)) for visitor in visitors]:
            send.wait()
        late = _come(hub.address)
        with pytest.raises(dist.DistBackendError, match=str(MOST_WAITING)) as caught:
            late.send(blank(1)).wait()
        assert "closed" not in str(caught.value)
        guests = _accepted(hub, MOST_WAITING)
        later = _come(hub.address)
        later.send(blank(1)).wait()
        for guest in guests:
            guest.close()


def _taken(rank: int, size: int) -> None:
    """Rank 2 gets the address of an endpoint that has a peer already."""
    if rank == 2:
        await_key("met")
        for number in range(6):  # to try both roles in a pair, which depend on the addresses
            stray = dlslime_backend.Endpoint("stray")
            stray.connect(bytes.fromhex(await_key(f"address {number}")))
            with pytest.raises(dist.DistBackendError, match="different peer") as caught:
                stray.send(pattern(100, 9)).wait(20)
            assert "has been closed" not in str(caught.value)
        tell("told")
        return
    pairs = [met(rank, f"pair {number}") for number in range(6)]
    for number, endpoint in enumerate(pairs):
        if rank == 0:
            tell(f"address {number}", endpoint.address.hex())
        endpoint.send(pattern(100, rank)).wait()
    sync("sent", 2)
    tell("met")
    await_key("told")
    for endpoint in pairs:
        message = blank(100)
        endpoint.recv(message).wait()
        expect_pattern(message, 1 - rank)
        with pytest.raises(TimeoutError):
            endpoint.recv(message).wait(0.01)
    sync("checked", 2)


@endpoint_routes
def test_endpoint_that_has_its_peer_takes_no_other_peer(env: dict[str, str]) -> None:
    run_world(_taken, 3, env=env, init=False)


def test_endpoint_that_has_its_peer_takes_no_other_of_the_same_process() -> None:
    for _ in range(20):
        one, peer, stray = (dlslime_backend.Endpoint(name) for name in ("one", "peer", "stray"))
        one.connect(peer.address)
        peer.connect(one.address)
        peer.send(pattern(100, 1)).wait()
        stray.connect(one.address)
        with pytest.raises(dist.DistBackendError, match="different peer"):
            stray.send(pattern(100, 9)).wait(20)
        stray.close()
        peer.send(pattern(100, 2)).wait()
        for seed in (1, 2):
            message = blank(100)
            one.recv(message).wait()
            expect_pattern(message, seed)


# --- Errors' texts contain only names known to the caller ---


def _late(begin: Callable[[], dlslime_backend.Transfer]) -> str:
    with pytest.raises(TimeoutError) as caught:
        begin().wait(0.01)
    return str(caught.value)


def _pair() -> tuple[dlslime_backend.Endpoint, dlslime_backend.Guest, dlslime_backend.Hub]:
    hub = dlslime_backend.Hub("my hub")
    endpoint = _come(hub.address, "my endpoint")
    endpoint.send(blank(1)).wait()
    (guest,) = _accepted(hub)
    guest.recv(blank(1)).wait()
    return endpoint, guest, hub


@pytest.mark.parametrize("which", [0, 1], ids=["endpoint", "guest"])
def test_time_out_of_expect_imm_names_no_internal_number(which: int) -> None:
    *ends, _hub = _pair()
    peer = ends[which]
    text = _late(peer.expect_imm)
    assert "immediate" in text
    assert ("my endpoint", "my hub")[which] in text
    assert not INTERNAL.search(text), text


def test_time_out_beside_an_expected_immediate_names_no_internal_number() -> None:
    endpoint, _guest, _hub = _pair()
    waiting = endpoint.expect_imm()
    text = _late(lambda: endpoint.recv(blank(10), 7))
    waiting.cancel()
    assert "tag 7" in text  # the caller's
    assert "immediate" in text  # among the pending operations
    assert not INTERNAL.search(text), text


@pytest.mark.parametrize("how", ["cancelled", "closed", "never_met"])
def test_failures_of_expect_imm_name_no_internal_number(how: str) -> None:
    endpoint, guest, hub = _pair()
    waiting = guest.expect_imm()
    if how == "cancelled":
        waiting.cancel()
    elif how == "closed":
        endpoint.close()
    else:
        hub.close()
        late = _come(hub.address, "my endpoint")
        waiting = late.expect_imm()
    with pytest.raises(dist.DistBackendError) as caught:
        waiting.wait(20)
    assert "immediate" in str(caught.value)
    assert not INTERNAL.search(str(caught.value)), caught.value


def test_texts_of_endpoints_name_the_other_end_and_not_a_rank() -> None:
    endpoint, guest, _hub = _pair()
    region = dlslime_backend.register(blank(100))
    remote = dlslime_backend.import_region(region.export())
    region.deregister()
    local = dlslime_backend.register(blank(100))
    texts = [_late(lambda: endpoint.recv(blank(10), 5)), _late(lambda: guest.recv(blank(10), 5))]
    with pytest.raises(ValueError, match="not registered") as caught:
        endpoint.read(local, remote).wait()
    texts.append(str(caught.value))
    endpoint.close()
    with pytest.raises(dist.DistBackendError, match="has been closed") as gone:
        guest.recv(blank(1), 6).wait(20)
    texts.append(str(gone.value))
    for text in texts:
        assert not INTERNAL.search(text), text
    # The hub's own name is not the peer's.
    assert "other endpoint (my hub)" not in texts[-1]


def _group_texts(rank: int, size: int) -> str:
    side = side_of(rank)
    side.read().wait()
    text = ""
    if rank == 0:
        waiting = side.peer.expect_imm()
        text = _late(side.peer.expect_imm) + _late(lambda: side.peer.recv(blank(4), 3))
        waiting.cancel()
    sync("late")
    return text


def test_time_outs_in_a_group_name_the_rank_and_no_internal_tag() -> None:
    (text, output), _ = run_world(_group_texts, 2, with_output=True, fresh=True)
    for said in (text, output):
        assert "immediate" in said
        assert "rank 1" in said
        assert "tag 3" in text
        assert not re.search(r"tag [2-4]\d{9}", said), said


def _truncated(rank: int, size: int) -> None:
    """Rank 1's note is longer than rank 0 takes: both ranks' texts contain no internal tag."""
    endpoint = met(rank)
    side = Side(endpoint, 1 - rank)
    if rank == 0:
        with pytest.raises(dist.DistBackendError) as caught:
            endpoint.expect_imm().wait(20)
        assert not INTERNAL.search(str(caught.value)), caught.value
    else:
        endpoint._link.transfer(True, [(side.region._core, side.remote._core, None)], 1, b"12345")
    sync("told")


def test_log_of_a_note_that_is_too_long_names_no_internal_tag() -> None:
    for _, output in run_world(_truncated, 2, init=False, fresh=True, with_output=True):
        assert not INTERNAL.search(output), output


def test_texts_of_nixls_agents_name_no_internal_number() -> None:
    one, other = nixl_agent("one"), nixl_agent("other")
    one.add_remote_agent(other.get_agent_metadata())
    one.make_connection("other")
    other.__del__()
    answer = one._remote("other")._endpoint._link.receive_note(2, 100)
    with pytest.raises(Exception, match="agent one to agent other") as caught:
        answer.wait(20)
    assert not INTERNAL.search(str(caught.value)), caught.value
