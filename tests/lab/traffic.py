"""Random traffic both ways between two ranks, from common seeds: every byte is checked.

The traffic goes in bursts. A burst says which messages each rank sends, and by which calls and in
which order the ranks send and receive; no call in a burst can block for ever.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import random
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from patterns import blank, expect

MESSAGES = 16  # of a burst, each way
LARGEST = 4 << 20
# Sizes at which the way of a message changes, beside random sizes.
EDGES = [65536, 65537, (128 << 10) + 1, 1 << 20, (1 << 20) + 1, LARGEST]
# Calls for sending and for receiving a burst, and which calls surely come first: blocking sends
# can't all come before the receives, nor blocking receives before the sends.
CALLS = [
    ("batch", "batch", ""),
    ("send", "recv", ""),
    ("send", "irecv", ""),
    ("send", "irecv", "receives"),
    ("isend", "recv", ""),
    ("isend", "recv", "sends"),
    ("isend", "irecv", ""),
    ("isend", "irecv", "sends"),
    ("isend", "irecv", "receives"),
]
ALL_SENT, ALL_POSTED = 1, 2  # tags of messages about the calls that come first


@dataclasses.dataclass(frozen=True)
class Message:
    """A message; the contents follow from the seed."""

    seed: int
    tag: int
    nbytes: int

    def contents(self) -> torch.Tensor:
        """Make a tensor of the message's bytes, different from all other messages."""
        generator = torch.Generator().manual_seed(self.seed)
        words = torch.empty(self.nbytes // 4 + 1, dtype=torch.int32).random_(generator=generator)
        return words.view(torch.uint8)[: self.nbytes]


@dataclasses.dataclass(frozen=True)
class Burst:
    """Operations of two ranks at the same time."""

    seed: int
    sends: str
    receives: str
    first: str
    kept: bool  # the memory is used again and so stays registered, or is new
    messages: tuple[tuple[Message, ...], tuple[Message, ...]]  # by source, in order of sending


def draw_burst(number: int) -> Burst:
    """Return burst `number`, equal in all processes."""
    choice = random.Random(number)
    tags = [choice.randrange(16, 1 << 31) for _ in range(5)]
    sends, receives, first = choice.choice(CALLS)

    def message(index: int) -> Message:
        nbytes = int(math.exp2(choice.uniform(0, math.log2(LARGEST)))) - 1
        if choice.random() < 0.05:
            nbytes = choice.choice(EDGES)
        return Message(2 * MESSAGES * number + index, choice.choice(tags), nbytes)

    drawn = [message(index) for index in range(2 * MESSAGES)]
    both = tuple(drawn[:MESSAGES]), tuple(drawn[MESSAGES:])
    return Burst(number, sends, receives, first, choice.random() < 0.5, both)


class Talker:
    """A rank of two, which sends in a thread of its own, and counts the messages received."""

    def __init__(self, rank: int) -> None:
        self.messages = 0
        self.nbytes = 0
        self._rank = rank
        self._peer = 1 - rank
        self._sender = ThreadPoolExecutor(1)
        self._kept: dict[str, torch.Tensor] = {}

    def run(self, burst: Burst) -> None:
        """Take part in a burst."""
        if burst.sends == "batch":
            self._batch(burst)
            return
        sending = self._sender.submit(self._send_all, burst)
        try:
            self._receive_all(burst)
        finally:
            if sending.done():
                sending.result()  # raises the error that may have been the cause
        sending.result()

    def forget(self) -> None:
        """Give back the memory that bursts share."""
        self._kept.clear()

    def close(self) -> None:
        """Give back the memory and the thread."""
        self.forget()
        self._sender.shutdown()

    def _memory(self, burst: Burst, purpose: str, sizes: list[int]) -> list[torch.Tensor]:
        """Return blank tensors, in new memory, or side by side in the memory shared by bursts."""
        if not burst.kept:
            return [blank(nbytes) for nbytes in sizes]
        if purpose not in self._kept or len(self._kept[purpose]) < sum(sizes):
            self._kept[purpose] = torch.empty(sum(sizes) + LARGEST, dtype=torch.uint8)
        start = self._kept[purpose][: sum(sizes)].fill_(int(blank(1)[0]))
        return list(start.split(sizes))

    def _outgoing(self, burst: Burst) -> list[tuple[Message, torch.Tensor]]:
        messages = burst.messages[self._rank]
        tensors = self._memory(burst, "out", [m.nbytes for m in messages])
        made = list(zip(messages, tensors, strict=True))
        for message, tensor in made:
            tensor.copy_(message.contents())
        return made

    def _incoming(self, burst: Burst) -> list[tuple[Message, torch.Tensor]]:
        """Return pairs of a message and room for the message or more, in order of receives."""
        choice = random.Random(burst.seed + self._rank)
        messages = burst.messages[self._peer]
        if burst.sends != "send" or burst.receives != "recv":
            # The order of tags is random; messages of a tag come in the order of sending.
            streams = collections.defaultdict(collections.deque)
            for message in messages:
                streams[message.tag].append(message)
            tags = choice.sample([m.tag for m in messages], len(messages))
            messages = tuple(streams[tag].popleft() for tag in tags)
        rooms = [m.nbytes + choice.choice([0, 0, 1, 100]) for m in messages]
        return list(zip(messages, self._memory(burst, "in", rooms), strict=True))

    def _check(self, message: Message, tensor: torch.Tensor) -> None:
        expect(tensor[: message.nbytes], message.contents(), message)
        behind = tensor[message.nbytes :]
        expect(behind, blank(len(behind)), f"behind {message}")
        self.messages += 1
        self.nbytes += message.nbytes

    def _send_all(self, burst: Burst) -> None:
        made = self._outgoing(burst)
        if burst.first == "receives":
            dist.recv(torch.empty(0), self._peer, tag=ALL_POSTED)
        if burst.sends == "send":
            for message, tensor in made:
                dist.send(tensor, self._peer, tag=message.tag)
                tensor.zero_()  # a message sent again must not come from the tensor
            return
        works = [dist.isend(tensor, self._peer, tag=m.tag) for m, tensor in made]
        if burst.first == "sends":
            dist.send(torch.empty(0), self._peer, tag=ALL_SENT)
        for (_, tensor), work in zip(made, works, strict=True):
            work.wait()
            tensor.zero_()

    def _receive_all(self, burst: Burst) -> None:
        choice = random.Random(burst.seed - self._rank)
        wanted = self._incoming(burst)
        if burst.first == "sends":
            dist.recv(torch.empty(0), self._peer, tag=ALL_SENT)
        sources = [self._peer if choice.random() < 0.8 else None for _ in wanted]
        if burst.receives == "recv":
            for (message, tensor), source in zip(wanted, sources, strict=True):
                assert dist.recv(tensor, source, tag=message.tag) == self._peer
                self._check(message, tensor)
            return
        works = [dist.irecv(t, source, tag=m.tag) for (m, t), source in zip(wanted, sources)]
        if burst.first == "receives":
            dist.send(torch.empty(0), self._peer, tag=ALL_POSTED)
        for index in choice.sample(range(len(works)), len(works)):
            works[index].wait()
            self._check(*wanted[index])

    def _batch(self, burst: Burst) -> None:
        made, wanted = self._outgoing(burst), self._incoming(burst)
        ops = [dist.P2POp(dist.isend, t, self._peer, tag=m.tag) for m, t in made]
        received = [dist.P2POp(dist.irecv, t, self._peer, tag=m.tag) for m, t in wanted]
        # Some sends, then a receive, and so on.
        for index, op in enumerate(received):
            ops.insert(2 * index + self._rank, op)
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for message, tensor in wanted:
            self._check(message, tensor)
        for _, tensor in made:
            tensor.zero_()
