"""Matching under random programs: orders, sizes, tags, any-source, threads, self-sends.

Hypothesis draws a program: messages between two or three ranks, and for each receiver an order in
which the rank posts its receives, directed or from any source. Every rank runs its part. A model
predicts the message of each receive: the next message of the stream (source, tag).
"""

import collections
import dataclasses
import os
import random
import threading
import time

import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness import BACKEND, run_world
from patterns import blank, expect, expect_pattern

SIZES = [0, 1, 7, 64, 1000, 8191, 8192, 8193, 16384, 16385, 65536, 65537, 300_001, 1 << 20]
TAGS = [0, 1, 0x10001, 0x7FFFFFFF]


@dataclasses.dataclass(frozen=True)
class Message:
    """A message of a program; its index in the program is the seed of its contents."""

    source: int
    target: int
    tag: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Program:
    """Messages in order of their sends, and parameters for sending and receiving."""

    size: int
    messages: tuple[Message, ...]
    any_source_share: float  # share of the receives from any source
    seed: int  # order of receives, pauses, room to spare
    receive_first: bool
    batch: bool
    threads: bool


@st.composite
def programs(draw: st.DrawFn) -> Program:
    size = draw(st.sampled_from([2, 3]))
    rank = st.integers(0, size - 1)
    message = st.builds(Message, rank, rank, st.sampled_from(TAGS), st.sampled_from(SIZES))
    messages = draw(st.lists(message, min_size=1, max_size=60))
    if BACKEND != "dlslime":  # Gloo has no messages to oneself, nor empty ones from any source
        messages = [m for m in messages if m.source != m.target and m.nbytes]
    return Program(
        size,
        tuple(messages),
        draw(st.sampled_from([0.0, 0.3, 1.0])),
        draw(st.integers(0, 1 << 30)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
    )


class Receiver:
    """Posts a rank's receives in random order and checks the results against the model."""

    def __init__(self, program: Program, rank: int) -> None:
        self.random = random.Random(program.seed + rank)
        self.program = program
        # The model: the messages still to come, by (source, tag), first in first out.
        self.streams: dict[tuple[int, int], collections.deque[int]] = {}
        for index, message in enumerate(program.messages):
            if message.target == rank:
                key = (message.source, message.tag)
                self.streams.setdefault(key, collections.deque()).append(index)
        self.posted: list[tuple[int, object, object]] = []

    def run(self) -> None:
        while self.streams:
            source, tag = self.random.choice(sorted(self.streams))
            if self.random.random() < self.program.any_source_share:
                self.receive_from_any(tag)
            else:
                self.post_directed(source, tag)
            if self.random.random() < 0.1:
                time.sleep(0.001)
        for index, tensor, work in self.random.sample(self.posted, len(self.posted)):
            work.wait()
            self.check(index, tensor)

    def post_directed(self, source: int, tag: int) -> None:
        index = self.take(source, tag)
        nbytes = self.program.messages[index].nbytes
        tensor = blank(nbytes + self.random.choice([0, 0, 1, 5000]))
        self.posted.append((index, tensor, dist.irecv(tensor, source, tag=tag)))

    def receive_from_any(self, tag: int) -> None:
        # Waits at once: the next possible receives depend on the source of the message.
        sources = [s for s, t in self.streams if t == tag]
        room = max(self.program.messages[self.streams[s, tag][0]].nbytes for s in sources)
        tensor = blank(room)
        work = dist.irecv(tensor, tag=tag)  # recv refuses a message from oneself
        work.wait()
        source = work._source_rank()
        assert source in sources, f"tag {tag}: {source} is none of {sources}"
        self.check(self.take(source, tag), tensor)

    def take(self, source: int, tag: int) -> int:
        stream = self.streams[source, tag]
        index = stream.popleft()
        if not stream:
            del self.streams[source, tag]
        return index

    def check(self, index: int, tensor: object) -> None:
        nbytes = self.program.messages[index].nbytes
        expect_pattern(tensor[:nbytes], index, f"message {index}")
        expect(tensor[nbytes:], blank(len(tensor) - nbytes), f"behind message {index}")


def _send_all(program: Program, rank: int) -> list[dist.Work]:
    from patterns import pattern

    chosen = [(i, m) for i, m in enumerate(program.messages) if m.source == rank]
    if program.batch and chosen:
        return dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, pattern(m.nbytes, i), m.target, tag=m.tag) for i, m in chosen]
        )
    return [dist.isend(pattern(m.nbytes, i), m.target, tag=m.tag) for i, m in chosen]


def _run_program(rank: int, size: int, program: Program) -> None:
    receiver, works = Receiver(program, rank), []
    own = any(m.source == m.target == rank for m in program.messages)
    if program.threads:
        sender = threading.Thread(target=lambda: works.extend(_send_all(program, rank)))
        sender.start()
        receiver.run()
        sender.join()
    elif program.receive_first and program.any_source_share == 0 and not own:
        sender = threading.Timer(0.005, lambda: works.extend(_send_all(program, rank)))
        sender.start()
        receiver.run()
        sender.join()
    else:
        works = _send_all(program, rank)
        receiver.run()
    for work in works:
        work.wait()


ENVIRONMENTS = [{}, {"DLSLIME_CMA": "off"}, {"DLSLIME_ROUTE": "tcp"}, {"DLSLIME_ROUTE": "gloo"}]


@settings(
    max_examples=int(os.environ.get("DLSLIME_TEST_EXAMPLES", "90")),
    deadline=None,
    derandomize="DLSLIME_TEST_RANDOM" not in os.environ,
    phases=[Phase.explicit, Phase.generate],  # shrinking a hang would take hours
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(program=programs(), environment=st.sampled_from(ENVIRONMENTS))
def test_every_receive_gets_the_next_message_of_its_stream(
    program: Program, environment: dict[str, str]
) -> None:
    env = environment if BACKEND == "dlslime" else {}
    run_world(_run_program, program.size, program, env=env, timeout=30)
