"""Checks of names and interfaces: what other hosts need to reach this one."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from dlslime_backend.cli.finding import Finding, note, problem

_SLOW = 1.0  # seconds
_FAILED = "failed: "
_LOOPBACK = "127.0.0.1"

Timed = tuple[float, str]  # seconds, and the result or the error's text


def timed(call: Callable[[], object]) -> Timed:
    """Return how long a call takes, in seconds, and its result or error as a text."""
    start = time.monotonic()
    try:
        result = str(call())
    except OSError as error:
        result = f"{_FAILED}{error}"
    return time.monotonic() - start, result


def own_address() -> str | None:
    """Return the address that this process would publish to other hosts.

    Raises:
        RuntimeError: there is none, or a variable is not understood.
    """
    from dlslime_backend._load import extension

    address: str | None = extension().own_address(anyway=True)
    return address


def addresses(published: Callable[[], str | None] = own_address) -> Iterator[Finding]:
    """Report the address that this process would publish."""
    try:
        found = published()
    except (RuntimeError, ValueError) as error:
        yield problem(
            "interfaces",
            f"other hosts can't reach this process: {error}",
            "set DLSLIME_SOCKET_IFNAME to an interface that is up and has an address",
        )
    else:
        yield Finding("interfaces", f"other hosts connect to {found}")


def _look_up(name: str) -> Timed:
    return timed(lambda: socket.gethostbyname(name))


def as_torch_asks(address: str) -> str:
    """Return the form of an IP address in which torch's store asks for the name of its peer."""
    return address if ":" in address else f"::ffff:{address}"


def _look_back(address: str) -> Timed:
    place = (as_torch_asks(address), 0, 0, 0)
    return timed(lambda: socket.getnameinfo(place, socket.NI_NUMERICSERV)[0])


def names(
    look_up: Callable[[str], Timed] = _look_up,
    look_back: Callable[[str], Timed] = _look_back,
    published: Callable[[], str | None] = lambda: None,
) -> Iterator[Finding]:
    """Report how long names take: torch looks up this host's name and the peers' addresses.

    Args:
        look_up: finds the address of a name.
        look_back: finds the name of an address, as torch's store does.
        published: returns the address by which peers know this host; None: it has none.
    """
    name = socket.gethostname()
    took, result = look_up(name)
    if result.startswith(_FAILED):
        yield note(
            "host name",
            f"{name} has no address ({result.removeprefix(_FAILED)}, after {took:.1f} s)",
            f"add a line '<address> {name}' to /etc/hosts",
        )
    elif took < _SLOW:
        yield Finding("host name", f"{name} is {result}, found in {took:.2f} s")
    else:
        yield _slow("host name", name, took, f"{result} {name}")
    # A job of one host meets at the loopback address, a job of several at the published one.
    addresses = list(dict.fromkeys(filter(None, [published(), _LOOPBACK])))
    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(look_back, addresses))
    for address, (took, result) in zip(addresses, answers, strict=True):
        check = f"reverse DNS of {address}"
        if took >= _SLOW:
            yield _slow(check, as_torch_asks(address), took, f"{as_torch_asks(address)} {name}")
        else:
            yield Finding(check, f"{result}, found in {took:.2f} s")


def _slow(check: str, what: str, took: float, line: str) -> Finding:
    return problem(
        check,
        f"looking up {what} takes {took:.1f} s: a name server does not answer, and each connection "
        "of torch's store waits for it",
        f"add '{line}' to /etc/hosts on every host, or mend /etc/resolv.conf; until then: export "
        "RES_OPTIONS='timeout:1 attempts:1'",
    )
