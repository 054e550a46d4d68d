"""SGLang's own prefill and decode, on top of dlslime: prefill's KV pages move into decode's.

Real, byte for byte from SGLang's wheel (`VERSION`, `SHA256`): the plugin loader and its hooks,
which find dlslime by the entry point in pyproject.toml; ServerArgs, its command line and its checks
of the disaggregation's arguments; the runtime context; get_kv_class; the NIXL backend's manager,
senders, receivers and bootstrap server with all base classes, their threads, their ZeroMQ and HTTP;
MetadataBuffers. Imports are real, too: aiohttp, msgspec, orjson, psutil, pydantic, pyzmq, requests,
torch.

Stand-ins, none in a transfer's way:

* the __init__ of `sglang` and of `sglang.srt.configs`, which import the models, are left out;
* modules imported only for names (`NAMES_ONLY`): SGLang's configurations of models and its
  sharding of pages, Triton, images, video, base64, and HTTP routes of the server;
* for the scheduler, its KV pool and the model the test itself has pages, creates managers, senders
  and receivers, and calls methods in the order of PrefillBootstrapQueue, DecodePreallocQueue and
  the schedulers; the test states the rank in groups of one, which SGLang takes from
  torch.distributed.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import types
from typing import Any
from unittest import mock

import pytest
import torch

from harness import (
    Died,
    await_death,
    await_key,
    dlslime_only,
    run_world,
    send_signal,
    stopped,
    sync,
    tell,
)
from nodes import free_port
from sglang_server import (
    AUX_ROWS,
    FOLDER,
    PAGES,
    SHA256,
    VERSION,
    WHEEL_FOR,
    Pages,
    Request,
    Requests,
    Server,
    find_sglang,
    indices,
    load_plugins_by_entry_point,
    server_args,
    states,
)
from test_without_nic import hosts
from wheels import made, python_files

ENV = {
    "SGLANG_HOST_IP": "127.0.0.1",
    "NO_PROXY": "127.0.0.1",
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2",  # seconds, the least possible value
    # A server on a busy machine may be late with its answer.
    "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "1000000",
}
NOTICING = {**ENV, "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "1"}

pytestmark = [dlslime_only, pytest.mark.usefixtures("_sglang")]


@pytest.fixture(scope="session")
def _sglang() -> None:
    unpack()


def unpack() -> None:
    """Unpack SGLang's Python files into FOLDER in the first run."""
    inside = ["sglang/srt/", "sglang/kernels/"]
    made(
        FOLDER.name,
        lambda folder: python_files(folder, f"sglang=={VERSION}", SHA256, WHEEL_FOR, inside),
    )


def rooms(count: int, here: str, pages: int = 21) -> Requests:
    """Return requests with separate pages."""
    generator = torch.Generator().manual_seed(count)
    there, mine = (
        torch.randperm(PAGES[name], generator=generator)[: count * pages].view(count, pages)
        for name in ("prefill", here)
    )
    return [(there[i].tolist(), mine[i].tolist(), i, AUX_ROWS - 1 - i) for i in range(count)]


def send(sender: Any, pages: Pages, aux: int) -> list[str]:
    """Send a request in two parts, as a chunked prefill; return the states seen."""
    seen = states(sender, "WaitingForInput")
    sender.init(len(pages), aux)
    sender.send(indices(pages[:8]))
    seen += states(sender, "Transferring")
    sender.send(indices(pages[8:]), [pages])
    return seen


def _move(rank: int, size: int, port: int, device: str) -> None:
    name = ["prefill", "decode"][rank]
    other = sys.modules["nixl._api"] = types.ModuleType("nixl._api")  # as if NIXL were installed
    server = Server(name, port, device=device)
    assert sys.modules["nixl._api"] is other
    kind = type(server.manager)
    assert kind.__module__ == "dlslime_backend.integrations.sglang"
    # After the class that checks messages first.
    assert kind.__mro__[2].__module__ == "sglang.srt.disaggregation.nixl.conn"
    requests = rooms(10, "decode")
    if rank == 0:
        senders = [server.sender(room) for room in range(10)]
        assert states(senders[0], "Bootstrapping") == ["Bootstrapping"]
        sync("opened")
        # The first request goes alone, the others at a time, and end in another order.
        seen = send(senders[0], requests[0][0], requests[0][2])
        seen += states(senders[0], "Success")
        order = ["Bootstrapping", "WaitingForInput", "Transferring", "Success"]
        assert sorted(set(seen), key=seen.index) == order[order.index(seen[0]) :]
        for room in reversed(range(1, 10)):
            send(senders[room], requests[room][0], requests[room][2])
        for sender in senders:
            states(sender, "Success")
            sender.clear()
        server.cache.expect()
    else:
        sync("opened")
        receivers = [server.ask(room, requests[room][1], requests[room][3]) for room in range(10)]
        for receiver in receivers:
            assert states(receiver, "Success")[-1] == "Success"
            receiver.clear()
        server.cache.expect(*requests)
    sync("moved")


@pytest.mark.usefixtures("_fake_gpus")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pages_states_and_aux_data_of_many_rooms_arrive(device: str) -> None:
    """16 tensors of pages, 4 of states, and SGLang's metadata; ten requests at a time."""
    run_world(_move, 2, free_port(), device, env=ENV, init=False, fresh=True)


def test_pages_arrive_between_hosts_without_rdma() -> None:
    env = [{**host, **ENV} for host in hosts(2)]
    results = run_world(
        _move, 2, free_port(), "cpu", env=env, init=False, fresh=True, with_output=True
    )
    assert any("go over TCP" in output for _, output in results)


def _broken(rank: int, size: int, port: int) -> None:
    server = Server(["prefill", "decode"][rank], port)
    requests = rooms(3, "decode")
    if rank == 0:
        _prefill_that_loses_connections(server, requests)
        return
    for room, (_, pages, _, aux) in enumerate(requests[:2]):
        receiver = server.ask(room, pages, aux)
        sync(f"asked {room}")
        if room == 1:
            await_key("connected")
            for guest in server.manager.agent._mailbox._hub.accept():
                guest.close()
            tell("closed")
        states(receiver, "Failed", 10)  # well before the time-out
        with pytest.raises(Exception, match="NIXL transfer encountered ERR|KVSender failed"):
            receiver.failure_exception()
        sync(f"failed {room}")
    states(server.ask(2, requests[2][1], requests[2][3]), "Success")
    server.cache.expect(requests[2])
    sync("moved")


def _prefill_that_loses_connections(server: Server, requests: Requests) -> None:
    agent = server.manager.agent
    senders = [server.sender(room) for room in range(3)]
    sync("asked 0")
    states(senders[0], "WaitingForInput")
    (peer,) = server.manager.decode_kv_args_table
    watched = mock.patch.object(agent, "check_xfer_state", wraps=agent.check_xfer_state)
    with watched as checked, stopped(1):
        _send_half(senders[0], requests[0])
        while checked.call_count < 100:  # under way, and decode answers no process
            time.sleep(0.001)
        agent.remove_remote_agent(peer)
        states(senders[0], "Failed")
    sync("failed 0")
    sync("asked 1")
    states(senders[1], "WaitingForInput")
    time.sleep(1.1)  # SGLang makes at most one connection in a second
    agent.make_connection(peer)
    tell("connected")
    await_key("closed")
    _send_half(senders[1], requests[1])
    states(senders[1], "Failed")
    sync("failed 1")
    send(senders[2], requests[2][0], requests[2][2])
    states(senders[2], "Success")
    sync("moved")


def _send_half(sender: Any, request: Request) -> None:
    sender.init(len(request[0]), request[2])
    sender.send(indices(request[0][:8]))


def test_lost_connections_fail_requests_at_both_servers_and_the_next_has_a_new_one() -> None:
    run_world(_broken, 2, free_port(), env=ENV, init=False, fresh=True)


def _install() -> None:
    importlib.import_module("dlslime_backend.integrations.sglang").install()


def _killed(rank: int, size: int, port: int) -> None:
    name = ["prefill", "decode", "decode 2"][rank]
    server = Server(name, port, load=_install)
    sync("servers are there", 3)
    if rank == 0:
        _prefill_until_killed(server)
        return
    requests = rooms(3, name)
    first = server.ask(10 * rank, requests[0][1], requests[0][3])
    second = server.ask(10 * rank + 1, requests[1][1], requests[1][3])
    states(first, "Success")
    sync("first", 3)
    if rank == 1:
        signal.pause()
    states(second, "Success")  # the other decode has been killed
    third = server.ask(10 * rank + 2, requests[2][1], requests[2][3])
    await_key("half of the third is there")
    begun = time.monotonic()
    send_signal(0, signal.SIGKILL)
    await_death(0)
    assert states(third, "Failed")[-1] == "Failed"
    assert time.monotonic() - begun < 15
    with pytest.raises(Exception, match="Lost connection with prefill"):
        third.failure_exception()


def _prefill_until_killed(server: Server) -> None:
    requests = {1: rooms(3, "decode"), 2: rooms(3, "decode 2")}
    opened = {room: server.sender(room) for room in (10, 11, 20, 21, 22)}

    def begin(room: int) -> None:
        there, _, aux, _ = requests[room // 10][room % 10]
        send(opened[room], there, aux)

    for room in (10, 20):
        begin(room)
        states(opened[room], "Success")
    sync("first", 3)
    states(opened[11], "WaitingForInput")
    send_signal(1, signal.SIGKILL)
    await_death(1)
    begun = time.monotonic()
    opened[11].init(21, 1)
    opened[11].send(indices(requests[1][1][0]), [requests[1][1][0]])
    assert states(opened[11], "Failed")[-1] == "Failed"
    assert time.monotonic() - begun < 20
    with pytest.raises(Exception, match="ERR|Failed to post|failed to post"):
        opened[11].failure_exception()
    begin(21)
    states(opened[21], "Success")
    states(opened[22], "WaitingForInput")
    there = requests[2][2][0]
    opened[22].init(len(there), 2)
    opened[22].send(indices(there[:8]))
    states(opened[22], "Transferring")
    tell("half of the third is there")
    signal.pause()


def test_killed_servers_fail_their_own_requests_in_bounded_time() -> None:
    results = run_world(_killed, 3, free_port(), env=NOTICING, init=False, may_die=[0, 1])
    assert [isinstance(result, Died) for result in results] == [True, True, False]


def _choices(rank: int, size: int) -> None:
    find_sglang()
    load_plugins_by_entry_point()
    ours = importlib.import_module("dlslime_backend.integrations.sglang")
    ours.install()  # once more
    from sglang.srt.arg_groups import pd_disaggregation_hook
    from sglang.srt.arg_groups.choices import DISAGG_TRANSFER_BACKEND_CHOICES as choices
    from sglang.srt.disaggregation.utils import KVClassType, TransferBackend, get_kv_class
    from sglang.srt.runtime_context import get_context

    assert choices.count("dlslime") == 1
    server_args("decode", 1, backend="nixl")
    manager = get_kv_class(TransferBackend.NIXL, KVClassType.MANAGER)
    assert manager.__module__ == "sglang.srt.disaggregation.nixl.conn"
    refused = "on CPUs and CUDA GPUs, and SGLang's device is 'xpu'"
    with pytest.raises(ValueError, match=refused):
        server_args("decode", 1, device="xpu")
    os.environ["SGLANG_DISAGGREGATION_NIXL_BACKEND"] = "DLSLIME"
    get_context().set_server_args(server_args("decode", 1, backend="nixl", device="xpu"))
    assert issubclass(chosen := get_kv_class(TransferBackend.NIXL, KVClassType.MANAGER), manager)
    with pytest.raises(ValueError, match=refused):
        chosen()
    choices.remove("dlslime")
    del pd_disaggregation_hook.handle_pd_disaggregation
    with pytest.raises(RuntimeError, match="no sglang.*handle_pd_disaggregation in this SGLang"):
        ours.plugin()
    assert "dlslime" not in choices


def test_what_is_not_asked_for_stays_and_what_cannot_be_is_refused() -> None:
    run_world(_choices, 1, env=ENV, init=False, fresh=True)
