"""Two agents and all calls of serving frameworks: prints the result of each call as JSON.

The program imports `nixl` without knowing the provider: the test compares the output over NVIDIA's
own library with the output over dlslime.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from nixl._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

PAGE = 4096
PAGES = 256
Calls = list[tuple[str, Any]]


def memory(seed: int) -> torch.Tensor:
    """Return bytes that differ from page to page, and by the seed: uint8 [PAGES, PAGE]."""
    pages = torch.arange(PAGES * PAGE, dtype=torch.int64).view(PAGES, PAGE)
    return ((pages * 7 + pages // PAGE * 13 + seed * 101) % 251).to(torch.uint8)


def target(pipe: Connection) -> None:
    """Run the target: send its metadata, then answer questions."""
    agent = nixl_agent("target", nixl_agent_config(backends=["UCX"]))
    bytes_ = memory(2)
    registered = agent.register_memory(bytes_)
    pipe.send((agent.get_agent_metadata(), bytes_.data_ptr()))
    while (question := pipe.recv())[0]:
        kind, argument = question
        if kind == "notes":
            pipe.send(notes(agent, argument))
        elif kind == "page":
            pipe.send(bytes_[argument].tolist())
        elif kind == "told":
            pipe.send(await_told(agent, *argument))
        elif kind == "add":
            pipe.send(agent.add_remote_agent(argument))
            agent.send_notif("initiator", b"and back")
    agent.deregister_memory(registered)
    pipe.send(None)
    os._exit(0)  # NVIDIA's library may crash at the interpreter's end


def notes(agent: Any, count: int) -> Any:
    """Return the next `count` notifications."""
    found: dict[str, list[bytes]] = {}
    until = time.monotonic() + 30
    while sum(map(len, found.values())) < count and time.monotonic() < until:
        for name, messages in agent.get_new_notifs().items():
            found.setdefault(name, []).extend(messages)
    return {name: [message.decode() for message in messages] for name, messages in found.items()}


def await_told(agent: Any, tag: bytes, prefix: bool) -> bool:
    """Tell whether a notification with the tag comes."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        if agent.check_remote_xfer_done("initiator", tag, tag_is_prefix=prefix):
            return True
    return False


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the name of its exception."""
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 (the test compares any exception)
        return type(error).__name__
    return result.decode() if isinstance(result, bytes) else result


def finish(agent: Any, handle: Any) -> str:
    """Wait for a transfer, and return its state."""
    until = time.monotonic() + 30
    while agent.check_xfer_state(handle) == "PROC" and time.monotonic() < until:
        time.sleep(0.0001)
    return str(agent.check_xfer_state(handle))


def run(agent: Any, handle: Any, note: bytes = b"") -> str:
    """Begin a transfer and wait for its end."""
    started = agent.transfer(handle, note)
    return f"{started in ('DONE', 'PROC')} {finish(agent, handle)}"


class Program:
    """The initiator's calls, in order."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.calls: Calls = []
        config = nixl_agent_config(backends=["UCX"], capture_telemetry=True)
        self.agent = nixl_agent("initiator", config)
        self.memory = memory(1)
        self.registered = self.agent.register_memory(self.memory)
        self.metadata, self.address = pipe.recv()

    def note(self, label: str, call: Callable[[], Any]) -> None:
        """Keep the result of a call."""
        self.calls.append((label, outcome(call)))

    def ask(self, kind: str, argument: Any) -> Any:
        """Return the target's answer."""
        self.pipe.send((kind, argument))
        return self.pipe.recv()

    def pages(self, address: int, pages: range) -> list[tuple[int, int, int]]:
        """Return descriptors of pages."""
        return [(address + page * PAGE, PAGE, 0) for page in pages]

    def metadata_calls(self) -> None:
        """Introduce the agents to each other."""
        agent = self.agent
        self.note("unknown before", lambda: agent.check_remote_metadata("target"))
        self.note("add", lambda: agent.add_remote_agent(self.metadata))
        self.note("again", lambda: agent.add_remote_agent(self.metadata))
        self.note("own", lambda: agent.add_remote_agent(agent.get_agent_metadata()))
        self.note("junk", lambda: agent.add_remote_agent(b"junk"))
        self.note("known", lambda: agent.check_remote_metadata("target"))
        self.note("absent", lambda: agent.check_remote_metadata("absent"))
        there = agent.get_xfer_descs([(self.address, 100, 0)], "DRAM")
        here = agent.get_xfer_descs([(self.memory.data_ptr(), 100, 0)], "DRAM")
        self.note("its memory", lambda: agent.check_remote_metadata("target", there))
        self.note("not its memory", lambda: agent.check_remote_metadata("target", here))
        self.note("connect", lambda: agent.make_connection("target"))
        self.note("connect absent", lambda: agent.make_connection("absent"))

    def descriptor_calls(self) -> None:
        """Make lists of descriptors, right and wrong."""
        agent, mine = self.agent, self.memory.data_ptr()
        descs = agent.get_xfer_descs([(mine, 100, 0), (mine + 200, 50, 0)], "DRAM")
        self.note("count", descs.descCount)
        self.note("empty", descs.isEmpty)
        self.note("first", lambda: descs[0] == (mine, 100, 0))
        copy = agent.deserialize_descs(agent.get_serialized_descs(descs))
        self.note("serialized", lambda: copy == descs)
        self.note("registered", lambda: self.registered[0] == (mine, PAGES * PAGE, 0, b""))
        rows = np.array([[mine, 10, 0]], dtype=np.uint64)
        self.note("array", lambda: agent.get_xfer_descs(rows, "DRAM").descCount())
        tensors = [self.memory[0], self.memory[2]]
        self.note("tensors", lambda: agent.get_xfer_descs(tensors).descCount())
        self.note("not contiguous", lambda: agent.get_xfer_descs(self.memory.t()))
        self.note("no kind", lambda: agent.get_xfer_descs([(mine, 1, 0)]))
        self.note("two fields", lambda: agent.get_xfer_descs([(mine, 1)], "DRAM"))
        wrong = [
            ("agent", "absent", mine, 1),
            ("address", "target", self.address - PAGE, 1),
            ("length", "target", self.address, PAGES * PAGE + 1),
            ("local address", "NIXL_INIT_AGENT", mine - PAGE, 1),
        ]
        for label, name, address, length in wrong:
            self.note(
                f"prepare wrong {label}",
                lambda n=name, a=address, s=length: agent.prep_xfer_dlist(n, [(a, s, 0)], "DRAM"),
            )
        self.note("unregister", lambda: agent.deregister_memory(agent.get_reg_descs(tensors)))

    def transfer_calls(self) -> None:
        """Run prepared transfers, with and without notifications."""
        agent, pages = self.agent, range(PAGES)
        here = agent.prep_xfer_dlist(
            "NIXL_INIT_AGENT", self.pages(self.memory.data_ptr(), pages), "DRAM"
        )
        rows = np.array(self.pages(self.address, pages), dtype=np.uint64)
        there = agent.prep_xfer_dlist("target", rows, "DRAM")
        chosen = np.array([2, 3, 5], dtype=np.int32)
        read = agent.make_prepped_xfer("READ", here, [0, 1, 3], there, chosen, b"have read")
        self.note("not posted", lambda: agent.check_xfer_state(read))
        self.note("read", lambda: run(agent, read))
        self.note("bytes", lambda: self.memory[[0, 1, 3]].equal(memory(2)[[2, 3, 5]]))
        self.note("others", lambda: self.memory[[2, 4, 5]].equal(memory(1)[[2, 4, 5]]))
        self.note("note", lambda: self.ask("notes", 1))
        numbers = agent.get_xfer_telemetry(read)
        self.note("telemetry", lambda: (numbers.totalBytes, numbers.descCount))
        self.note("times", lambda: numbers.startTime > 0 and numbers.xferDuration > 0)
        self.note("backend", lambda: agent.query_xfer_backend(read))
        self.note("again", lambda: run(agent, read, b"another"))
        self.note("as before", lambda: run(agent, read))
        self.note("notes", lambda: self.ask("notes", 2))
        write = agent.make_prepped_xfer("WRITE", here, [7], there, [9])
        self.note("write", lambda: run(agent, write))
        self.note("written", lambda: self.ask("page", 9) == memory(1)[7].tolist())
        self.note("beside", lambda: self.ask("page", 10) == memory(2)[10].tolist())
        every = list(reversed(pages))
        self.note(
            "all", lambda: run(agent, agent.make_prepped_xfer("READ", here, every, there, every))
        )
        self.note("all bytes", lambda: self.memory[11:].equal(memory(2)[11:]))
        self.note("released", lambda: agent.release_xfer_handle(read))
        for label, left, right in [
            ("numbers", [0, 1], [0]),
            ("beyond", [0], [PAGES]),
            ("negative", [0], [-1]),
            ("none", [], []),
        ]:
            self.note(
                f"indices: {label}",
                lambda a=left, b=right: agent.make_prepped_xfer("READ", here, a, there, b),
            )
        self.note("operation", lambda: agent.make_prepped_xfer("PUT", here, [0], there, [0]))
        short = agent.prep_xfer_dlist("", [(self.memory.data_ptr(), 10, 0)], "DRAM")
        self.note("lengths", lambda: agent.make_prepped_xfer("READ", short, [0], there, [0]))

    def combined_calls(self) -> None:
        """Run transfers of lists, and send notifications alone."""
        agent = self.agent
        here = agent.get_xfer_descs([self.memory[20], self.memory[30]])
        there = agent.get_xfer_descs(self.pages(self.address, range(40, 42)), "DRAM")
        both = agent.initialize_xfer("WRITE", here, there, "target", b"have written")
        self.note("combined", lambda: run(agent, both))
        self.note("combined note", lambda: self.ask("notes", 1))
        self.note("combined page", lambda: self.ask("page", 41) == self.memory[30].tolist())
        self.note("absent's", lambda: agent.initialize_xfer("READ", here, there, "absent"))
        less = agent.get_xfer_descs([(self.address, 10, 0), (self.address, 10, 0)], "DRAM")
        self.note("other lengths", lambda: agent.initialize_xfer("READ", here, less, "target"))
        for message in (b"one", "two", b"three"):
            agent.send_notif("target", message)
        self.note("told", lambda: self.ask("told", (b"th", True)))
        self.note("told inside", lambda: self.ask("told", (b"wo", False)))
        self.note("notify absent", lambda: agent.send_notif("absent", b"1"))
        self.note("added there", lambda: self.ask("add", agent.get_agent_metadata()))
        self.note("answered", lambda: notes(agent, 1))
        own = agent.prep_xfer_dlist(
            "initiator", self.pages(self.memory.data_ptr(), range(9)), "DRAM"
        )
        mine = agent.prep_xfer_dlist("", self.pages(self.memory.data_ptr(), range(9)), "DRAM")
        self.note(
            "to itself",
            lambda: run(agent, agent.make_prepped_xfer("WRITE", mine, [8], own, [6], b"me")),
        )
        self.note("note to itself", lambda: notes(agent, 1))
        self.note("copied", lambda: self.memory[6].equal(self.memory[8]))
        agent.remove_remote_agent("target")
        self.note("removed", lambda: agent.check_remote_metadata("target"))
        self.note("transfer after it", lambda: agent.transfer(both))
        self.note("note after it", lambda: agent.send_notif("target", b"1"))
        self.note("removed twice", lambda: agent.remove_remote_agent("target"))
        self.note("deregistered", lambda: agent.deregister_memory(self.registered))


def main() -> None:
    """Start the target, and print the results of the initiator's calls."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    other = context.Process(target=target, args=(theirs,), daemon=True)
    other.start()
    program = Program(ours)
    program.metadata_calls()
    program.descriptor_calls()
    program.transfer_calls()
    program.combined_calls()
    program.note("the target's end", lambda: program.ask("", None))
    print(json.dumps(program.calls), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
