"""Common parts of the examples p2p_*.py: the command line, and how the two ends of a pair meet.

Without --role both ends run in one process, each on a thread. With --role two processes run, on one
host or on two. Each process listens at its own URL, connects to the peer's URL, and sends the
address of its endpoint and the handle of its memory in lines of JSON. The lines give access to
memory, so the URLs must be in a network of trusted hosts.
"""

import argparse
import contextlib
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import torch
import torch.distributed as dist

import dlslime_backend as dlslime

_LONGEST_LINE = 64 << 10  # bytes


class PairError(Exception):
    """The two ends can't work together; the text is the whole message to the user."""


class Address(NamedTuple):
    """Host and port at which a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULTS = {
    "initiator": Address("127.0.0.1", 29610),
    "target": Address("127.0.0.1", 29611),
}


def address(text: str) -> Address:
    """Parse HOST:PORT or tcp://HOST:PORT; an IPv6 address is in brackets.

    Raises:
        argparse.ArgumentTypeError: the text has a different form.
    """
    found = re.fullmatch(r"(?:tcp://)?(?:\[([^][\s]+)\]|([^][:/@\s]+)):([0-9]{1,5})", text)
    try:
        host, port = (found[1] or found[2], int(found[3])) if found else ("", 0)
        host.encode("idna")  # as a resolver encodes
    except UnicodeError:
        port = 0
    if not 0 < port < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT or tcp://HOST:PORT")
    return Address(host, port)


def device(text: str) -> torch.device:
    """Parse cpu, cuda or cuda:N, a GPU of this process.

    Raises:
        argparse.ArgumentTypeError: the text has a different form, or the GPU does not exist.
    """
    found = re.fullmatch(r"cpu|cuda(?::([0-9]{1,4}))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not cpu, cuda or cuda:N")
    count = torch.cuda.device_count()
    if text != "cpu" and int(found[1] or 0) >= count:
        raise argparse.ArgumentTypeError(f"there is no {text} here: torch finds {count} GPUs")
    return torch.device(text)


def seconds(text: str) -> float:
    """Parse a time limit in seconds, above 0 and up to a day.

    Raises:
        argparse.ArgumentTypeError: the text is no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 86400")
    return value


def parser(doc: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all p2p examples; `doc` is the description."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument(
        "--device", type=device, default="cpu", help="whose memory: cpu (the default), cuda, cuda:N"
    )
    made.add_argument(
        "--timeout", type=seconds, default=60.0, help="of each wait, in seconds (default: 60)"
    )
    return made


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Turn errors between the two ends into one line on stderr and exit status 2."""
    try:
        yield
    except (PairError, dist.DistError) as error:
        reason = str(error).splitlines()[0]  # torch appends a C++ stack
        print(f"{Path(sys.argv[0]).name}: error: {reason}", file=sys.stderr)
        sys.exit(2)


Facts: TypeAlias = dict[str, str]
Taken = TypeVar("Taken")


class Line:
    """A connection to the peer for lines of JSON, in both directions."""

    def __init__(self, other: str, incoming: socket.socket, outgoing: socket.socket) -> None:
        self._other = other
        self._incoming, self._outgoing = incoming, outgoing
        self._reader = incoming.makefile("rb")

    def exchange(self, mine: Facts) -> Facts:
        """Send a dict to the peer, and return the peer's dict.

        Raises:
            PairError: the peer has ended, is silent, or sends malformed lines.
        """
        try:
            self._outgoing.sendall(json.dumps(mine).encode() + b"\n")
            line = self._reader.readline(_LONGEST_LINE)
        except TimeoutError:
            raise PairError(f"the {self._other} is connected, but says nothing") from None
        except OSError:
            line = b""
        if not line:
            raise PairError(f"the {self._other} has ended")
        try:
            theirs = json.loads(line)
        except (ValueError, RecursionError):
            theirs = None
        if not isinstance(theirs, dict) or not all(isinstance(v, str) for v in theirs.values()):
            raise PairError(f"what calls as the {self._other} is none: it sends other lines")
        return theirs

    def hang_up(self) -> None:
        """Close the connection, so that the peer does not wait."""
        for end in (self._reader, self._incoming, self._outgoing):
            end.close()


def _why(error: OSError) -> str:
    named = error.errno is not None and error.errno > 0  # a resolver's are negative
    return os.strerror(error.errno) if named else error.strerror or str(error)


def call(role: str, at: Address, limit: float) -> socket.socket:
    """Connect to the peer; retry for `limit` seconds until the peer listens.

    Raises:
        PairError: no connection within the limit.
    """
    deadline = time.monotonic() + limit
    while True:
        try:
            left = max(0.1, deadline - time.monotonic())
            return socket.create_connection(at, timeout=left)
        except OSError as error:
            if isinstance(error, socket.gaierror) or time.monotonic() + 0.1 > deadline:
                raise PairError(f"no {role} at {at} within {limit:g} s: {_why(error)}") from None
        time.sleep(0.1)


def listen(role: str, at: Address) -> socket.socket:
    """Return a listening socket.

    Raises:
        PairError: the address can't be used.
    """
    try:
        family = socket.getaddrinfo(*at, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(at, family=family)
    except OSError as error:
        raise PairError(f"{role} can't listen at {at}: {_why(error)}") from None


def _meet(role: str, other: str, urls: dict[str, Address], limit: float) -> Line:
    """Connect the two processes: each listens, and connects to the peer's URL."""
    mine, theirs = urls[role], urls[other]
    with listen(f"the {role}", mine) as listener:
        listener.settimeout(limit)
        outgoing = call(other, theirs, limit)
        try:
            incoming = listener.accept()[0]
        except TimeoutError:
            outgoing.close()
            raise PairError(
                f"the {other} at {theirs} has not called at {mine} within {limit:g} s: "
                "both need the same two URLs"
            ) from None
    for connection in (incoming, outgoing):
        connection.settimeout(limit)
    return Line(other, incoming, outgoing)


def _taken(take: Callable[[bytes], Taken], text: str) -> Taken:
    try:
        return take(bytes.fromhex(text))
    except ValueError as error:
        raise PairError(f"what the other process tells is of no use: {error}") from None


class Side:
    """One end of the pair, with an endpoint connected to the peer's endpoint.

    Raises:
        PairError: the peer runs a different program or has the wrong role, or sends a malformed
            address.
    """

    def __init__(self, role: str, line: Line, options: argparse.Namespace) -> None:
        self.role, self.initiator = role, role == "initiator"
        self.device: torch.device = options.device
        self.timeout: float = options.timeout
        self._line = line
        self.endpoint = dlslime.Endpoint(role, timeout=options.timeout)
        program = Path(sys.argv[0]).name
        hello = {"program": program, "role": role, "address": self.endpoint.address.hex()}
        theirs = line.exchange(hello)
        other = "target" if self.initiator else "initiator"
        if (theirs.get("program"), theirs.get("role")) != (program, other):
            what = f"{theirs.get('program')!r} as {theirs.get('role')!r}"
            raise PairError(f"the other process is {what}, and not {program!r} as {other!r}")
        _taken(self.endpoint.connect, theirs.get("address", ""))

    def swap(self, region: dlslime.Region) -> dlslime.RemoteRegion:
        """Send the handle of a region to the peer, and return the peer's region.

        Raises:
            PairError: the peer's handle is malformed.
        """
        if self.device.type == "cuda":  # the peer's transfers don't wait for local streams
            torch.cuda.synchronize(self.device)
        theirs = self._line.exchange({"region": region.export().hex()})
        return _taken(dlslime.import_region, theirs.get("region", ""))

    def meet(self) -> None:
        """Wait until the peer has called `meet`, too."""
        self._line.exchange({})

    def report(self, initiator: str, target: str) -> None:
        """Print one line with the work of this end, and the route."""
        what = initiator if self.initiator else target
        route = self.endpoint.route()
        # One string with the line's end, since the peer may print at the same time.
        print(f"{self.role}: {what} (route: {route}, {self.device})\n", end="", flush=True)


def expect(memory: torch.Tensor, values: Sequence[int]) -> None:
    """Assert that the memory has exactly these values."""
    assert memory.tolist() == list(values), f"{memory.tolist()} instead of {list(values)}"


Play: TypeAlias = Callable[[Side], None]


def _run_end(play: Play, role: str, line: Line, options: argparse.Namespace) -> None:
    try:
        side = Side(role, line, options)
        with side.endpoint:
            play(side)
            side.meet()  # closing ends pending operations of the endpoint
    finally:
        line.hang_up()


def _run_both(play: Play, options: argparse.Namespace) -> None:
    """Run both ends in this process; if one end fails, the second end stops soon."""
    ends = dict(zip(DEFAULTS, socket.socketpair(), strict=True))
    with ThreadPoolExecutor() as threads:
        running = []
        for (role, end), other in zip(ends.items(), reversed(DEFAULTS), strict=True):
            end.settimeout(options.timeout)
            line = Line(other, end, end)
            running.append(threads.submit(_run_end, play, role, line, options))
    errors = [error for error in (end.exception() for end in running) if error]
    # A PairError or DistError of one end may be only the consequence of the peer's error.
    if errors:
        raise min(errors, key=lambda e: (isinstance(e, PairError), isinstance(e, dist.DistError)))


def run(doc: str, play: Play, both: bool = True) -> None:
    """Run an example by the command line.

    Args:
        doc: description for --help.
        play: the part of one end; `side.initiator` selects the role.
        both: whether both ends may run in one process, which is then the default for --role.
    """
    command = parser(doc)
    roles = ["both", *DEFAULTS] if both else list(DEFAULTS)
    command.add_argument("--role", choices=roles, default="both", required=not both)
    for role, default in DEFAULTS.items():
        command.add_argument(
            f"--{role}-url",
            type=address,
            default=default,
            metavar="HOST:PORT",
            help=f"where the {role} listens (default: {default})",
        )
    options = command.parse_args()
    urls = {role: getattr(options, f"{role}_url") for role in DEFAULTS}
    if len(set(urls.values())) == 1:
        command.error("--initiator-url and --target-url are the same")
    with one_line():
        if options.role == "both":
            _run_both(play, options)
        else:
            other = "target" if options.role == "initiator" else "initiator"
            line = _meet(options.role, other, urls, options.timeout)
            _run_end(play, options.role, line, options)


def parse_rank(doc: str) -> argparse.Namespace:
    """Parse the command line of one of two ranks, with or without torchrun.

    Args:
        doc: description for --help.

    Returns:
        The options; `place` has keyword arguments for init_process_group.
    """
    command = parser(doc)
    command.add_argument("--rank", type=int, choices=(0, 1), help="needed without torchrun")
    command.add_argument(
        "--url", type=address, default=DEFAULTS["initiator"], metavar="HOST:PORT", help="of rank 0"
    )
    options = command.parse_args()
    if options.device == torch.device("cuda"):  # a GPU for each rank, if there are two
        number = int(os.environ.get("LOCAL_RANK", options.rank or 0))
        options.device = torch.device("cuda", number % torch.cuda.device_count())
    options.place = {"timeout": timedelta(seconds=options.timeout)}
    if "RANK" in os.environ:
        if os.environ.get("WORLD_SIZE") != "2":
            command.error(f"this takes 2 ranks, and not {os.environ.get('WORLD_SIZE')}")
        return options
    if options.rank is None:
        command.error("--rank is needed without torchrun")
    options.place |= {"init_method": f"tcp://{options.url}", "rank": options.rank, "world_size": 2}
    with one_line():  # torch would report a missing rank 0 in many lines
        if options.rank == 0:
            listen("rank 0", options.url).close()
        else:
            call("rank 0", options.url, options.timeout).close()
    return options
