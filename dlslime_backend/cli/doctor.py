"""`doctor`: what works on this machine, what does not, and what to do about it."""

import argparse
import re
import socket
from collections.abc import Iterator

from dlslime_backend.cli import pair
from dlslime_backend.cli.checks import gpus, isolation, limits, network, rdma, software
from dlslime_backend.cli.console import console, print_findings, print_json, size_text, time_text
from dlslime_backend.cli.finding import Finding, Level, note, problem
from dlslime_backend.cli.host import Host

_SEE = "the text names the cause; python -m dlslime_backend doctor on each host looks for more"
_UNREACHED = (
    "open the firewall between the hosts for the ports of /proc/sys/net/ipv4/ip_local_port_range, "
    "or name an interface that the other host reaches: DLSLIME_SOCKET_IFNAME"
)


def of_this_machine(host: Host) -> Iterator[Finding]:
    """Yield the findings of all checks that need no second process."""
    yield from software.versions()
    yield from software.libraries(host)
    yield from software.modules(host)
    for check in (rdma.devices, rdma.ports, rdma.gids, rdma.links, limits.memlock):
        yield from check(host)
    yield from limits.descriptors()
    for check in (
        limits.shared_memory,
        isolation.reading,
        isolation.namespaces,
        isolation.common_directory,
        gpus.gpus,
    ):
        yield from check(host)


def of_engine(seconds: float) -> Iterator[Finding]:
    """Yield what only the engine knows: settings, addresses, routes, and a pair tried for real."""
    from dlslime_backend._load import extension

    try:
        found = extension().machine_report()
    except (RuntimeError, ValueError) as error:
        yield problem("settings", str(error), "correct or unset the variable")
        return
    yield from network.addresses()
    yield from network.names(published=_published)
    for route, text in found:
        yield Finding(f"route {route}", text)
    yield from of_pair("pair on this host", pair.try_here(seconds)[0])


def _published() -> str | None:
    try:
        return network.own_address()
    except RuntimeError:
        return None  # told by another finding


def of_pair(name: str, heard: pair.Heard) -> Iterator[Finding]:
    """Yield the findings about a pair that was tried for real."""
    if "error" in heard:
        error = heard["error"]
        remedy = _UNREACHED if re.search("not been reached|no answer|Unreachable", error) else _SEE
        yield problem(name, f"the pair does not work: {error}", remedy)
        return
    route = heard["route"]
    times = ", ".join(
        f"{size_text(fact['size'])} in {time_text(fact['seconds'])}" for fact in heard["times"]
    )
    text = f"{route['text']} One way: {times}." if times else route["text"]
    if route["route"] in ("tcp", "gloo"):
        yield note(name, text, "the reasons in the text say what a faster route lacks")
    else:
        yield Finding(name, text)


def _listen(options: argparse.Namespace) -> list[Finding]:
    place = options.listen
    name = socket.gethostname()
    with pair.started([0], place, options.seconds) as (rank,):
        if not options.json:
            console.print(
                f"waiting {options.seconds:g} s for: python -m dlslime_backend doctor --peer "
                f"{name}:{place.port}"
            )
        return list(of_pair(f"pair with {place.host}:{place.port}", pair.watch(rank)))


def _peer(options: argparse.Namespace) -> list[Finding]:
    place = options.peer
    name = f"pair with {place.host}:{place.port}"
    try:
        socket.create_connection(place, timeout=min(10.0, options.seconds)).close()
    except OSError as error:
        return [_unreachable(name, place, error)]
    with pair.started([1], place, options.seconds) as (rank,):
        return list(of_pair(name, pair.watch(rank)))


def _unreachable(name: str, place: pair.Place, error: OSError) -> Finding:
    if isinstance(error, ConnectionRefusedError):
        text = f"{place.host} answers, but nothing listens at port {place.port}"
        return problem(
            name, text, f"run there: python -m dlslime_backend doctor --listen {place.port}"
        )
    if isinstance(error, TimeoutError):
        text = f"nothing answers at {place.host}:{place.port}: packets are dropped on the way"
        return problem(name, text, "open the port in the firewall or security group of both hosts")
    return problem(name, f"{place.host}:{place.port} can't be reached: {error}", "mend the address")


def findings(options: argparse.Namespace) -> list[Finding]:
    """Return the doctor's findings for the options of the command line."""
    if options.listen:
        return _listen(options)
    if options.peer:
        return _peer(options)
    found = list(of_this_machine(Host()))
    if any(item.check == "extension" and item.level is Level.PROBLEM for item in found):
        return found
    return [*found, *of_engine(options.seconds)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the doctor's options."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--listen",
        metavar="PORT",
        type=lambda text: pair.parse_place(text, "0.0.0.0"),  # noqa: S104
        help="try a pair with the host that calls `doctor --peer`",
    )
    where.add_argument(
        "--peer",
        metavar="HOST:PORT",
        type=pair.parse_place,
        help="try a pair with the host where `doctor --listen` runs",
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="limit of each wait (default: 60)"
    )


def run(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if there is a problem, else 0."""
    found = findings(options)
    if options.json:
        print_json([finding.as_dict() for finding in found])
    else:
        print_findings(found)
    return int(any(finding.level is Level.PROBLEM for finding in found))
