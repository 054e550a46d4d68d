"""SGLang's prefill over dlslime, and malformed messages of other processes to its port.

The messages go through SGLang's own manager, its thread and its ZeroMQ socket; test_sglang lists
the stand-ins. After any message, a later request of another decode server is served.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import strategies as st

from harness import await_key, dlslime_only, run_world, sync, tell
from mutations import changed, damaged, fuzzed
from nodes import free_port
from polling import eventually
from sglang_server import Server, indices, states
from test_sglang import ENV, _sglang, rooms, send  # noqa: F401  (a fixture)

pytestmark = [dlslime_only, pytest.mark.usefixtures("_sglang")]

FIRST = 1000  # of the rooms made up here
LAST = 987_654_321_987  # of the request to be served: no change of a message leads to the room
Frames = list[bytes]


class Port:
    """The port of a manager, with a way to know that the manager's thread goes on."""

    def __init__(self, manager: Any) -> None:
        import zmq
        from sglang.srt.disaggregation.base.conn import KVPoll

        self._manager, self._poll = manager, KVPoll
        self._socket = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.connect(f"tcp://127.0.0.1:{manager.rank_port}")
        self._next = FIRST
        self._ended = False
        threading.excepthook = self._note_end

    def _note_end(self, args: Any) -> None:
        self._ended = True
        raise args.exc_value

    def room(self) -> int:
        """Make a request that waits for decode's message."""
        self._next += 1
        self._manager.update_status(self._next, self._poll.Bootstrapping)
        return self._next

    def has_failed(self, room: int) -> bool:
        return self._manager.check_status(room) == self._poll.Failed

    def send(self, frames: Frames) -> None:
        """Send frames; return once the manager's thread has handled a later message, too."""
        assert not self._ended
        self._socket.send_multipart(frames or [b""])
        last = self.room()
        self._socket.send_multipart(self._failing(last))
        eventually(lambda: self._ended or self.has_failed(last))
        assert not self._ended, "the thread has ended"
        self._manager.request_status.pop(last)

    def _failing(self, room: int) -> Frames:
        if self._manager.disaggregation_mode.value == "prefill":
            return [b"ABORT", str(room).encode()]
        encode = self._manager._encode_kv_status_message
        failed = self._poll.Failed
        return encode(bootstrap_room=room, status=failed, failure_reason="")  # type: ignore[no-any-return]


def told_of(receiver: Any, server: Server) -> tuple[Frames, Frames]:
    """Return decode's registration, and decode's message for request `receiver`."""
    import numpy as np

    manager = server.manager
    request = manager.build_receiver_metadata_message(
        bootstrap_room=receiver,
        required_dst_info_num=1,
        kv_indices=np.arange(21, dtype=np.int32),
        aux_index=1,
        state_indices=[list(range(21))],
        decode_prefix_len=0,
        is_dummy=False,
    )
    return manager.build_receiver_registration_message(), request


def _served(rank: int, server: Server, feed: Any) -> None:
    """Feed rank 0 with changed messages of rank 1; then rank 0 serves rank 1's request."""
    requests = rooms(1, "decode")
    if rank == 1:
        registration, request = told_of(FIRST, server)
        tell("told", json.dumps([[f.hex() for f in m] for m in (registration, request)]))
        await_key("fed")
        receiver = server.ask(LAST, requests[0][1], requests[0][3])
        states(receiver, "Success")
    else:
        said = [[bytes.fromhex(f) for f in m] for m in json.loads(await_key("told"))]
        feed(server, *said)
        sender = server.sender(LAST)
        tell("fed")
        send(sender, requests[0][0], requests[0][2])
        states(sender, "Success")
    sync("served")


@st.composite
def altered(draw: st.DrawFn, frames: Frames) -> Frames:
    """Draw frames with some bytes changed, and some frames missing, moved, or added."""
    frames = list(frames)
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(0, len(frames) - 1)) if frames else 0
        action = draw(st.sampled_from(["bytes", "bytes", "bytes", "empty", "cut", "move", "add"]))
        if action == "cut":
            frames = frames[:place]
        elif action == "add" or not frames:
            frames.insert(place, draw(st.binary(max_size=40)))
        elif action == "move":
            other = draw(st.integers(0, len(frames) - 1))
            frames[place], frames[other] = frames[other], frames[place]
        else:
            frames[place] = b"" if action == "empty" else draw(damaged(frames[place]))
    return frames


def _feed_prefill(server: Server, registration: Frames, request: Frames) -> None:
    port = Port(server.manager)
    others = [
        [b"WATERMARK", b"1", b"2", b"x"],
        [b"STAGING_RSP", *[b"1"] * 6],
        [b"ABORT", *[b"1"] * 4],
    ]
    whole = st.sampled_from([registration, request, *others])

    @fuzzed(300, frames=whole.flatmap(altered))
    def feed(frames: Frames) -> None:
        port.send(frames)

    feed()
    for table in (server.manager.decode_kv_args_table, server.manager.agent._remotes):
        table.pop(registration[4].decode(), None)  # some were well enough


def _prefill(rank: int, size: int, port: int) -> None:
    _served(rank, Server(["prefill", "decode"][rank], port), _feed_prefill)


def test_prefill_survives_any_message_and_serves_the_next_request() -> None:
    run_world(_prefill, 2, free_port(), env=ENV, init=False, fresh=True)


def renamed(registration: Frames, name: str, metadata: Any) -> Frames:
    return [*registration[:4], name.encode(), json.dumps(metadata).encode(), *registration[6:]]


def _feed_metadata(server: Server, registration: Frames, request: Frames) -> None:
    port, agent = Port(server.manager), server.manager.agent
    good = json.loads(registration[5])
    known = set(agent._remotes)

    @fuzzed(100, metadata=changed(good))
    def feed(metadata: Any) -> None:
        try:
            frames = renamed(registration, "changed", metadata)
        except (ValueError, RecursionError):  # JSON has no text for the value
            return
        port.send(frames)
        table = server.manager.decode_kv_args_table
        assert ("changed" in table) == ("changed" in agent._remotes)
        table.pop("changed", None)
        agent.remove_remote_agent("changed")
        assert set(agent._remotes) == known

    feed()
    name = registration[4].decode()
    port.send(registration)
    first = agent._remotes[name]
    for other in ("other", "", "NIXL_INIT_AGENT", agent.name):
        # The metadata of a known server, under another name; and names that mean the manager
        # itself.
        port.send(renamed(registration, other, good))
        port.send(renamed(registration, other, [good[0], other, *good[2:]]))
        assert agent._remotes.get(name) is first
    assert set(server.manager.decode_kv_args_table) == {name, "other"}


def _metadata(rank: int, size: int, port: int) -> None:
    _served(rank, Server(["prefill", "decode"][rank], port), _feed_metadata)


def test_malformed_metadata_of_a_decode_server_is_refused_and_others_are_served() -> None:
    run_world(_metadata, 2, free_port(), env=ENV, init=False, fresh=True)


def _feed_one_request(server: Server, registration: Frames, request: Frames) -> None:
    port = Port(server.manager)
    port.send(registration)
    for number, wrong in [(5, b"odd"), (6, b"x"), (7, b""), (8, b"\1"), (9, b"\xff")]:
        room, beside = port.room(), port.room()
        frames = [request[0], str(room).encode(), *request[2:]]
        port.send([*frames[:number], wrong, *frames[number + 1 :]])
        assert port.has_failed(room)
        assert not port.has_failed(beside)


def _one_request(rank: int, size: int, port: int) -> None:
    _served(rank, Server(["prefill", "decode"][rank], port), _feed_one_request)


def test_malformed_request_fails_and_no_other() -> None:
    run_world(_one_request, 2, free_port(), env=ENV, init=False, fresh=True)


def _feed_transfers(server: Server, registration: Frames, request: Frames) -> None:
    """Well-formed messages with impossible values: each fails its own transfer."""
    port, good = Port(server.manager), json.loads(registration[5])
    places = [6, 7, 8, 9, 10, 11, 12, 13, 17, 19, 20, 21]
    numbers = iter(range(1, 1 << 20))

    @fuzzed(
        40,
        told=st.sampled_from(places).flatmap(
            lambda at: st.tuples(st.just(at), damaged(registration[at]))
        ),
        asked=st.just(request) | altered(request),
    )
    def feed(told: tuple[int, bytes], asked: Frames) -> None:
        name, room = f"changed {next(numbers)}", port.room()
        frames = renamed(registration, name, [good[0], name, *good[2:]])
        frames[told[0]] = told[1]
        sender = server.sender(room)
        port.send(frames)
        message = list(asked)
        if len(message) > 4:
            message[1], message[4] = str(room).encode(), name.encode()
        port.send(message)
        _ends(sender)

    feed()


def _ends(sender: Any) -> None:
    from sglang.srt.disaggregation.base.conn import KVPoll

    over = (KVPoll.Failed, KVPoll.Success)
    if sender.poll() == KVPoll.WaitingForInput:
        pages = list(range(21))
        sender.init(len(pages), 0)
        sender.send(indices(pages), [pages])
        eventually(lambda: sender.poll() in over)
    sender.clear()


def _transfers(rank: int, size: int, port: int) -> None:
    _served(rank, Server(["prefill", "decode"][rank], port), _feed_transfers)


def test_impossible_addresses_and_sizes_fail_their_own_transfer() -> None:
    run_world(_transfers, 2, free_port(), env=ENV, init=False, fresh=True)


def _decode(rank: int, size: int, port: int) -> None:
    server = Server("decode", port)
    manager_port = Port(server.manager)
    room = manager_port.room()
    encode = server.manager._encode_kv_status_message
    status = encode(bootstrap_room=room, status=manager_port._poll.Success, failure_reason="why")
    others = [[b"CHUNK_READY", *[b"1"] * 6], [b"ABORT_ACK", *[b"1"] * 4], [b"STAGING_REQ", b"1"]]

    @fuzzed(200, frames=st.sampled_from([status, *others]).flatmap(altered))
    def feed(frames: Frames) -> None:
        manager_port.send(frames)

    feed()


def test_decode_survives_any_message() -> None:
    run_world(_decode, 1, free_port(), env=ENV, init=False, fresh=True)
