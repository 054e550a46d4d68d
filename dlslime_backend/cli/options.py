"""`config`: every option with its default, its value, where the value came from, its meaning."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rich.table import Table
from rich.text import Text

from dlslime_backend.cli.console import console, print_json


@dataclass(frozen=True)
class Option:
    """An environment variable of dlslime.

    Attributes:
        name: of the variable.
        default: as docs/configuration.md writes it; empty if the engine chooses.
        meaning: in a few words; docs/configuration.md has more.
        also: variables that count if this is not set, the first first.
    """

    name: str
    default: str
    meaning: str
    also: tuple[str, ...] = ()


OPTIONS = [
    Option("DLSLIME_ROUTE", "auto", "routes that a pair may take: auto, shm, rdma, tcp, gloo"),
    Option("DLSLIME_FALLBACK", "warn", "when only TCP works: warn, allow, or forbid"),
    Option("DLSLIME_SHM", "auto", "off: no shared memory"),
    Option("DLSLIME_CMA", "auto", "off: no process_vm_readv; messages take two copies"),
    Option("DLSLIME_RDMA", "auto", "off: no RDMA", ("NCCL_IB_DISABLE",)),
    Option(
        "DLSLIME_RENDEZVOUS_DIR",
        "none",
        "directory in several containers: they share memory",
        ("NVIDIA_DRA_LOCAL_IPC_DIR",),
    ),
    Option("DLSLIME_HOSTID", "the boot number", "equal: may share memory", ("NCCL_HOSTID",)),
    Option(
        "DLSLIME_SOCKET_IFNAME",
        "all but lo, docker*",
        "interfaces by which other hosts connect",
        ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
    ),
    Option("DLSLIME_GPUDIRECT", "auto", "off: NICs get no access to memory of GPUs"),
    Option("DLSLIME_GPU_KERNEL", "auto", "off: no kernel copies batches of small pieces"),
    Option("DLSLIME_STREAM_WAITS", "off", "on: wait() of a CUDA tensor makes the stream wait"),
    Option("DLSLIME_NEAR", "", "PCI address of the GPU whose nearest NICs are used"),
    Option(
        "DLSLIME_NICS",
        "every active port, three per pair of processes",
        "RDMA devices: mlx5_0,mlx5_1:2, =mlx5_1, ^mlx5_bond",
        ("NCCL_IB_HCA", "SLIME_VISIBLE_DEVICES"),
    ),
    Option(
        "DLSLIME_GID_INDEX",
        "the best",
        "entry of the port's GID table",
        ("NCCL_IB_GID_INDEX", "SLIME_GID_INDEX"),
    ),
    Option("DLSLIME_IB_SL", "0", "service level", ("NCCL_IB_SL", "SLIME_SERVICE_LEVEL")),
    Option("DLSLIME_IB_TC", "0", "traffic class: DSCP and ECN bits", ("NCCL_IB_TC",)),
    Option("DLSLIME_IB_PKEY", "0", "index of the partition key", ("NCCL_IB_PKEY",)),
    Option(
        "DLSLIME_IB_TIMEOUT",
        "17",
        "a packet is repeated after 4.096 us * 2^n",
        ("NCCL_IB_TIMEOUT",),
    ),
    Option("DLSLIME_IB_RETRY_CNT", "7", "how often a packet is repeated", ("NCCL_IB_RETRY_CNT",)),
    Option(
        "DLSLIME_QPS_PER_NIC",
        "1",
        "queue pairs per NIC between two processes",
        ("NCCL_IB_QPS_PER_CONNECTION", "SLIME_QP_NUM"),
    ),
    Option("DLSLIME_REGISTRATION_BYTES", "4294967296", "bytes that stay registered, per NIC"),
    Option("DLSLIME_EAGER_LIMIT", "65536", "bytes; up to here a message is copied at once"),
    Option("DLSLIME_RING_BYTES", "1048576", "bytes of each direction's ring"),
    Option("DLSLIME_ANNOUNCED_LIMIT", "67108864", "bytes kept for a peer's announced messages"),
    Option("DLSLIME_UNEXPECTED_LIMIT", "16777216", "bytes of unexpected messages kept per pair"),
    Option("DLSLIME_SPIN_US", "50", "how long a waiting thread polls before it sleeps"),
    Option("DLSLIME_TICK_US", "1000", "how often the background thread looks for messages"),
    Option("DLSLIME_RECOVERY_MS", "30000", "how long a lost connection is sought again"),
    Option("DLSLIME_RETURN_MS", "10000", "when a better route is tried again"),
    Option("DLSLIME_LINGER_MS", "1000", "how long destroy_process_group waits for sends"),
    Option("DLSLIME_FLIGHT_DIR", "in TMPDIR or /tmp", "folder of the flight records"),
    Option("DLSLIME_FLIGHT_SIGNAL", "none", "USR1 or USR2: writes the flight record"),
    Option("DLSLIME_PROVIDE", "", "names of dlslime, slime, nixl that import finds here"),
    Option("DLSLIME_OBS", "", "1: obs_snapshot() of the original's API counts"),
    Option(
        "DLSLIME_LOG",
        "warn",
        "error, warn, info, debug",
        ("TORCH_CPP_LOG_LEVEL", "SLIME_LOG_LEVEL"),
    ),
]


@dataclass(frozen=True)
class Setting:
    """An option with the value that counts now.

    Attributes:
        option: the option.
        value: as the engine reads it; empty if the engine chooses.
        source: the variable that gave the value, or "default".
    """

    option: Option
    value: str
    source: str


def source_of(option: Option, variables: Mapping[str, str]) -> str:
    """Return the variable that an option's value comes from, or "default".

    Variables of the original DLSlime count once its API is imported, so not here.
    """
    for name in (option.name, *option.also):
        if variables.get(name) and not name.startswith("SLIME_"):
            return name
    return "default"


def settings(variables: Mapping[str, str] = os.environ) -> list[Setting]:
    """Return all options with their values.

    Raises:
        RuntimeError: the engine does not understand a variable; the text names it.
    """
    from dlslime_backend._load import extension

    read = extension().config_values()
    found = []
    for option in OPTIONS:
        value = read.get(option.name, variables.get(option.name))
        source = source_of(option, variables)
        text = "" if value is None or source == "default" and value == "" else str(value)
        found.append(Setting(option, text or option.default, source))
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `config`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print every option; return 1 if the engine does not understand a variable, else 0."""
    try:
        found = settings()
    except (RuntimeError, ValueError) as error:
        console.print(Text(str(error), style="bold red"))
        return 1
    if options.json:
        print_json([{**asdict(s.option), "value": s.value, "source": s.source} for s in found])
        return 0
    table = Table()
    for name in ("option", "value", "from", "default", "meaning"):
        table.add_column(name, no_wrap=name == "option")
    for setting in found:
        style = "" if setting.source == "default" else "bold yellow"
        option = setting.option
        row = (option.name, setting.value, setting.source, option.default, option.meaning)
        table.add_row(*map(Text, row), style=style)
    console.print(table)
    return 0
