"""Command lines: the original's flags, and further flags of all programs of the pages."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

BAD_INPUT = 2  # exit status
WRONG_BYTES = 1

FLOAT = 4  # bytes of an element of the pages' tensors
EXPONENTS = list(range(8, 25))  # 2 KiB to 128 MiB


class UsageError(Exception):
    """A request can't be met; the text gives the reason in one line."""


class HostError(UsageError):
    """A request can't be met, for a reason that other ranks may not have."""


def is_first() -> bool:
    """Tell whether the process speaks for all ranks of torchrun; without torchrun, always true."""
    return os.environ.get("RANK", "0") == "0"


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one line, printed by rank 0."""

    def __init__(self, about: str | None, **more: Any) -> None:
        super().__init__(
            description=about, formatter_class=argparse.RawDescriptionHelpFormatter, **more
        )

    def error(self, message: str) -> NoReturn:
        """End the process with status 2."""
        self.exit(BAD_INPUT, f"{self.prog}: {message}\n" if is_first() else "")

    def refuse(self, error: UsageError) -> NoReturn:
        """End the process with status 2; each rank speaks of its own host."""
        if isinstance(error, HostError) and "RANK" in os.environ:
            self.exit(BAD_INPUT, f"{self.prog}, rank {os.environ['RANK']}: {error}\n")
        self.error(str(error))


def positive(text: str) -> int:
    """Return a count of at least one."""
    return _integer(text, 1, 1 << 40)


def not_negative(text: str) -> int:
    """Return a count of zero or more."""
    return _integer(text, 0, 1 << 40)


def exponent(text: str) -> int:
    """Return the pages' size e: a message has 2 << e elements of four bytes."""
    return _integer(text, 0, 32)


def seconds(text: str) -> float:
    """Return a time above zero."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def _integer(text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{value} is not in {least} .. {most}")
    return value


def message_bytes(size: int) -> int:
    """Return the bytes of a message of the pages' size, an exponent."""
    return (2 << size) * FLOAT


def address(text: str) -> tuple[str, int]:
    """Return a host and a port."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def names(words: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Return names given one by one or with commas between, each once.

    Raises:
        UsageError: a name is not known.
    """
    asked = list(dict.fromkeys(name for word in words for name in word.split(",") if name))
    for name in asked:
        if name not in known:
            raise UsageError(f"there is no {what} {name!r}: one of {', '.join(known)}")
    if not asked:
        raise UsageError(f"no {what} is named: one of {', '.join(known)}")
    return asked


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the flags of output files: the original's two, and ours."""
    parser.add_argument("--save-csv", action="store_true", help="write the table as CSV")
    parser.add_argument("--csv-filename", type=Path, default=Path("./output.csv"))
    parser.add_argument("--json", type=Path, help="write every figure, unrounded, as JSON")
    parser.add_argument("--plot", type=Path, help="draw a PNG; needs matplotlib")


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Add dlslime's flags of all programs that move memory."""
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: cuda if there is"
    )
    parser.add_argument(
        "--check",
        choices=["size", "iteration"],
        default="size",
        help="verify the bytes after each size, or after each iteration (not timed)",
    )
    parser.add_argument(
        "--memory", type=positive, default=256, help="MiB that the places of a batch may take"
    )


def add_engines(parser: argparse.ArgumentParser, known: Sequence[str]) -> None:
    """Add the choice of transfer engines, and the engines' settings."""
    parser.add_argument(
        "--transfer-engine",
        nargs="+",
        default=["dlslime"],
        help=f"one or several of {', '.join(known)}",
    )
    parser.add_argument(
        "--qp-num", type=positive, default=None, help="queue pairs per NIC (SLIME_QP_NUM, or 1)"
    )
    parser.add_argument("--wheels", default="", help="folder with the wheels of other engines")
    parser.add_argument(
        "--mooncake-protocol", choices=["auto", "tcp", "rdma"], default="auto", help="auto: by NICs"
    )


def queue_pairs(asked: int | None) -> int:
    """Return the number asked for, else the original's variable, else 1."""
    text = os.environ.get("SLIME_QP_NUM", "1")
    if asked is None and not (text.isdecimal() and int(text) > 0):
        raise UsageError(f"SLIME_QP_NUM={text} is not a number of queue pairs")
    return asked or int(text)


def device_of(name: str, number: int) -> torch.device:
    """Return the device asked for; a GPU is chosen by `number` among the process's GPUs.

    Raises:
        HostError: the process has no GPU.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise HostError("--device cuda: torch finds no GPU here")
    device = torch.device("cuda", number % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def check_outputs(options: argparse.Namespace) -> None:
    """Refuse output files that can't be written, before any measurement.

    Raises:
        UsageError: the folder of a file is none, and can't be made.
    """
    files = [options.json, options.plot, options.csv_filename if options.save_csv else None]
    for path in filter(None, files):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{path} can't be written: {error.strerror}") from None
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise UsageError(f"{path} can't be written")
