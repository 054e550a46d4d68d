"""One process computes prompts, another generates; the KV cache is copied while it is filled.

    python examples/prefill_decode.py --check

starts both on this host (needs `pip install transformers`). Or one on each of two hosts:

    python examples/prefill_decode.py --role decode --check
    python examples/prefill_decode.py --role prefill --decode HOST:29601

Both have a small Llama with the same random weights, and a cache of keys and values in blocks of 16
tokens; a request owns any of the blocks. After each layer of a prompt, prefill writes the layer's
keys and values into the blocks reserved by decode, and computes the next layer meanwhile. Decode
takes no part in the copies: an immediate arrives for each layer, and when all layers of a request
have arrived, decode generates from its own blocks. With --check decode compares the tokens with the
tokens that transformers generates in one process, and exits with 1 if any differs.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable, Sequence

import torch
from paged_cache import (  # in the same folder
    BLOCK,
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    PAGE,
    PagedCache,
    blocks_for,
    hand_out,
    make_pages,
    pages_of,
)
from transfer import Line, meet
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache

import dlslime_backend as dlslime

VOCABULARY = 1000
PORT = 29601


def make_model() -> LlamaForCausalLM:
    """Return the model, with the same float32 weights in every process."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=2 * KV_HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        initializer_range=0.1,  # so large that a token depends on all before
        eos_token_id=None,  # a request ends at the wanted number of tokens
    )
    model = LlamaForCausalLM(config).eval()
    model(torch.zeros(1, BLOCK, dtype=torch.int64))  # warm up: the first run is slow
    return model


def make_prompts(lengths: Sequence[int]) -> list[torch.Tensor]:
    """Return prompts of given lengths: random tokens, each int64 of shape [1, length]."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(VOCABULARY, (1, length), generator=generator) for length in lengths]


def next_token(model: LlamaForCausalLM, tokens: torch.Tensor, cache: Cache) -> int:
    """Return the likeliest token after the cached tokens and `tokens`, int64 [1, count]."""
    logits = model(tokens, past_key_values=cache, logits_to_keep=1).logits
    return int(logits[0, -1].argmax())


Span = tuple[float, float, int]  # begin and end of a transfer in seconds, its bytes


@dataclasses.dataclass
class Row:
    """Numbers of one request, or of all requests; times are in seconds."""

    tokens: int = 0  # of the prompt
    blocks: int = 0
    nbytes: int = 0
    computing: float = 0.0
    moving: float = 0.0  # while any layer was being copied
    hidden: float = 0.0  # the part of `moving` while prefill computed

    def add_spans(self, spans: Sequence[Span], computed: float) -> None:
        """Add transfers of layers, in their order.

        Args:
            spans: of the transfers.
            computed: when the prompt was computed, in seconds.
        """
        reached = 0.0  # time of concurrent transfers counts once
        for begin, end, nbytes in spans:
            begin, reached = max(begin, reached), max(end, reached)
            self.nbytes += nbytes
            self.moving += reached - begin
            self.hidden += max(0.0, min(reached, computed) - begin)

    def __add__(self, other: "Row") -> "Row":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Row(*(one + another for one, another in pairs))

    def __str__(self) -> str:
        return (
            f"{self.tokens:7,} {self.blocks:7,} {self.nbytes / 2**20:7.2f} "
            f"{self.computing * 1e3:9.1f} {self.moving * 1e3:9.1f} "
            f"{self.nbytes / self.moving / 1e9:6.2f} {self.hidden / self.moving:8.0%}"
        )


HEADING = "request  tokens  blocks     MiB computing    moving   GB/s  overlap   output"
UNITS = "                                         ms        ms"


def print_table(rows: Sequence[Row], outputs: Sequence[str]) -> None:
    """Print a line for each request, and the sum."""
    lines = [f"{n:<7} {row}   {o}" for n, (row, o) in enumerate(zip(rows, outputs, strict=True))]
    print("", HEADING, UNITS, *lines, f"all     {sum(rows, Row())}", sep="\n", flush=True)


class Prefill:
    """Computes the prompts, and writes keys and values into decode's memory."""

    def __init__(self, exchange: Line, lost_layer: int | None) -> None:
        self.model = make_model()
        self.lost_layer = lost_layer
        self.endpoint = dlslime.Endpoint("prefill")
        decode = json.loads(exchange(json.dumps({"address": self.endpoint.address.hex()})))
        self.endpoint.connect(bytes.fromhex(decode["address"]))
        self.theirs = dlslime.import_region(bytes.fromhex(decode["cache"]))
        self.prompts = [torch.tensor([prompt]) for prompt in decode["prompts"]]
        self.tables = hand_out([prompt.shape[1] for prompt in self.prompts], shuffled=False)
        self.pages = make_pages(sum(map(len, self.tables)))
        self.mine = dlslime.register(self.pages, "cache of prefill")
        # Transfers proceed by themselves. The thread of the pool records when each has ended.
        self.clock = concurrent.futures.ThreadPoolExecutor(1)

    def run(self, exchange: Line) -> None:
        """Compute all prompts, one after another, and send the timings to decode."""
        print(f"prefill  decode is reached by {self.endpoint.route()}", flush=True)
        ends = [self.compute(request) for request in range(len(self.prompts))]
        rows = [dataclasses.asdict(end()) for end in ends]
        exchange(json.dumps(rows))
        self.mine.deregister()
        self.endpoint.close()

    def compute(self, request: int) -> Callable[[], Row]:
        """Compute a prompt; return a function that waits until all layers are at decode."""
        prompt, here = self.prompts[request], self.tables[request]
        there = torch.empty_like(here)
        self.endpoint.recv(there, tag=request).wait()
        spans: list[concurrent.futures.Future[Span]] = []

        def migrate(layer: int) -> None:
            spans.append(self.migrate(request, layer, here, there))

        begin = time.perf_counter()
        token = next_token(self.model, prompt, PagedCache(self.pages, here, on_written=migrate))
        computed = time.perf_counter()
        arrived = sum(span.done() for span in spans)
        print(
            f"prefill  request {request}: {prompt.shape[1]} tokens in {len(here)} blocks computed "
            f"in {(computed - begin) * 1e3:.1f} ms, {arrived} of {LAYERS} layers have arrived",
            flush=True,
        )
        self.endpoint.send(torch.tensor([token]), tag=request).wait()

        def end() -> Row:
            row = Row(prompt.shape[1], len(here), computing=computed - begin)
            row.add_spans([span.result() for span in spans], computed)
            return row

        return end

    def migrate(
        self, request: int, layer: int, here: torch.Tensor, there: torch.Tensor
    ) -> concurrent.futures.Future[Span]:
        """Begin to write a layer's pages from the blocks `here` into the blocks `there`."""
        pages = (pages_of(self.mine, layer, here), pages_of(self.theirs, layer, there), PAGE)
        begin = time.perf_counter()
        # Transfers may overtake each other, so the last layer may arrive before others. An
        # immediate announces each layer, and decode counts.
        transfer = self.endpoint.write_with_imm(
            self.mine, self.theirs, [] if layer == self.lost_layer else pages, imm=request
        )

        def span() -> Span:
            transfer.wait()
            return begin, time.perf_counter(), transfer.nbytes

        return self.clock.submit(span)


class Decode:
    """Generates from keys and values written by prefill."""

    def __init__(self, exchange: Line, lengths: Sequence[int], count: int) -> None:
        self.model = make_model()
        self.count = count
        self.prompts = make_prompts(lengths)
        self.tables = hand_out([length + count for length in lengths], shuffled=True)
        self.pages = make_pages(sum(map(len, self.tables)))
        self.region = dlslime.register(self.pages, "cache of decode")
        self.endpoint = dlslime.Endpoint("decode")
        hello = {
            "address": self.endpoint.address.hex(),
            "cache": self.region.export().hex(),
            "prompts": [prompt[0].tolist() for prompt in self.prompts],
        }
        prefill = json.loads(exchange(json.dumps(hello)))
        self.endpoint.connect(bytes.fromhex(prefill["address"]))

    def run(self, exchange: Line, check: bool) -> bool:
        """Generate the tokens of all requests; return False if the check finds a wrong token."""
        for request, (prompt, table) in enumerate(zip(self.prompts, self.tables, strict=True)):
            self.endpoint.send(table[: blocks_for(prompt.shape[1])], tag=request).wait()
        generated: dict[int, list[int]] = {}
        layers = collections.Counter[int]()
        while len(generated) < len(self.prompts):
            request = self.endpoint.expect_imm().wait()
            layers[request] += 1
            if layers[request] == LAYERS:
                generated[request] = self.generate(request)
        rows = [Row(**row) for row in json.loads(exchange(""))]
        self.region.deregister()
        self.endpoint.close()
        same = [not check or generated[n] == self.alone(n) for n in range(len(rows))]
        words = {True: "as in one process" if check else "not checked", False: "DIFFERENT"}
        print_table(rows, [words[right] for right in same])
        return all(same)

    def generate(self, request: int) -> list[int]:
        """Return the tokens after a prompt; prefill sends the first token."""
        length = self.prompts[request].shape[1]
        token = torch.empty(1, dtype=torch.int64)
        self.endpoint.recv(token, tag=request).wait()
        begin = time.perf_counter()
        cache = PagedCache(self.pages, self.tables[request], length)
        tokens = [int(token)]
        while len(tokens) < self.count:
            tokens.append(next_token(self.model, torch.tensor([tokens[-1:]]), cache))
        print(
            f"decode   request {request}: {len(tokens)} tokens generated in "
            f"{time.perf_counter() - begin:.2f} s: {tokens[:5]}...",
            flush=True,
        )
        return tokens

    def alone(self, request: int) -> list[int]:
        """Return the tokens generated by transformers for a prompt, with its own cache."""
        prompt = self.prompts[request]
        tokens = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=self.count,
        )
        return tokens[0, prompt.shape[1] :].tolist()


def run_prefill(options: argparse.Namespace) -> None:
    """Run prefill."""
    exchange = meet("initiator", options.decode)
    Prefill(exchange, options.lose_layer).run(exchange)


def run_decode(options: argparse.Namespace) -> None:
    """Run decode; exit with 1 if a token is wrong."""
    exchange = meet("target", options.decode)
    if not Decode(exchange, options.prompts, options.tokens).run(exchange, options.check):
        sys.exit(1)


def run_both(options: argparse.Namespace) -> None:
    """Run prefill, and decode in a child process; exit with the child's status."""
    with socket.create_server(("localhost", 0)) as probe:
        options.decode = f"localhost:{probe.getsockname()[1]}"
    # A forked child has all modules already. As a daemon process it ends with the parent, also
    # after an exception.
    context = multiprocessing.get_context("fork")
    decode = context.Process(target=run_decode, args=(options,), daemon=True)
    decode.start()
    run_prefill(options)
    decode.join()
    sys.exit(decode.exitcode)


def main() -> None:
    """Run the roles that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--role", choices=["prefill", "decode"], help="default: both, on this host")
    add("--decode", default=f"localhost:{PORT}", metavar="HOST:PORT", help="where decode is")
    add("--prompts", type=int, nargs="+", default=[33, 150, 421, 77, 700], metavar="TOKENS")
    add("--tokens", type=int, default=24, help="how many decode generates for each prompt")
    add("--check", action="store_true", help="compare the tokens with those of one process")
    add("--lose-layer", type=int, metavar="LAYER", help="leave it out, for the check to find")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # more threads don't pay for a small model
    {"prefill": run_prefill, "decode": run_decode, None: run_both}[options.role](options)


if __name__ == "__main__":
    main()
