"""Checks of names and interfaces: what other hosts need to reach this one."""

import socket
import time
from collections.abc import Callable, Iterator

from dlslime_backend.cli.finding import Finding, note, problem

_SLOW = 1.0  # seconds
_FAILED = "failed: "

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


def _look_back(address: str) -> Timed:
    return timed(lambda: socket.getnameinfo((address, 0), 0)[0])


def names(
    look_up: Callable[[str], Timed] = _look_up,
    look_back: Callable[[str], Timed] = _look_back,
    published: Callable[[], str | None] = lambda: None,
) -> Iterator[Finding]:
    """Report how long names take: torch looks up this host's name and the peers' addresses.

    Args:
        look_up: finds the address of a name.
        look_back: finds the name of an address, as peers do.
        published: returns the address by which peers know this host; None: that of its name.
    """
    name = socket.gethostname()
    took, result = look_up(name)
    failed = result.startswith(_FAILED)
    if failed:
        yield note(
            "host name",
            f"{name} has no address ({result.removeprefix(_FAILED)}, after {took:.1f} s)",
            f"add a line '<address> {name}' to /etc/hosts",
        )
    elif took < _SLOW:
        yield Finding("host name", f"{name} is {result}, found in {took:.2f} s")
    else:
        yield _slow("host name", name, took, f"{result} {name}")
    address = published() or (None if failed else result)
    if address is None:
        return
    took, result = look_back(address)
    if took >= _SLOW:
        yield _slow("reverse DNS", address, took, f"{address} {name}")
    else:
        yield Finding("reverse DNS", f"{address} is {result}, found in {took:.2f} s")


def _slow(check: str, what: str, took: float, line: str) -> Finding:
    return problem(
        check,
        f"looking up {what} takes {took:.1f} s: a name server does not answer, and each connection "
        "of torch's store waits for it",
        f"add '{line}' to /etc/hosts on every host, or mend /etc/resolv.conf; until then: export "
        "RES_OPTIONS='timeout:1 attempts:1'",
    )
