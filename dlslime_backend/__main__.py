"""`python -m dlslime_backend`: look at a machine, a job, a pair, and the settings."""

import argparse
import sys
from pathlib import Path


def _cmake_folder(_options: argparse.Namespace) -> int:
    from dlslime_backend._load import LIBRARIES
    from dlslime_backend.cli.console import console

    console.out(str(Path(LIBRARIES, "cmake")), highlight=False)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from dlslime_backend.cli import bench, doctor, explain, metrics, options, top

    made = argparse.ArgumentParser(prog="python -m dlslime_backend", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = {"doctor": doctor, "explain": explain, "top": top, "metrics": metrics}
    modules |= {"bench": bench, "config": options}
    for name, module in modules.items():
        command = commands.add_parser(
            name, help=str(module.__doc__).partition(": ")[2].strip(), description=module.__doc__
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    cmake = commands.add_parser(
        "cmake-dir", help="the folder for -Ddlslime_DIR of CMake projects in C++"
    )
    cmake.set_defaults(run=_cmake_folder)
    return made


def main() -> int:
    """Run a command, and return its exit status: 0 well, 1 a problem was found, 2 bad arguments."""
    chosen = parser().parse_args()
    status: int = chosen.run(chosen)
    return status


if __name__ == "__main__":
    sys.exit(main())
