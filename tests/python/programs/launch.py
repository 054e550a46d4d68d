"""Runs programs in one torchrun launch, with common imports and a common process group.

``torchrun ... launch.py --backend NAME --results DIR module.function ...``: every rank calls the
functions in the order given, on the default group, and appends a line for each to
``DIR/rank<N>.jsonl``. If a program raises, the rank records the traceback and exits; then torchrun
ends the launch, and programs not reached have no line.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

# Long enough for a slow machine; shorter than the launch's deadline, so that a lost message shows
# as an error in its program.
GROUP_TIMEOUT = timedelta(seconds=40)
# A program that hangs all the same writes its stacks and ends.
STACKS_SECONDS = 60


def run_program(name: str) -> str:
    """Call a program; return an empty string, or the traceback of its failure."""
    module, function = name.split(".")
    try:
        getattr(importlib.import_module(module), function)()
    except Exception:  # noqa: BLE001 - any exception is the program's result
        return traceback.format_exc()
    return ""


def main() -> int:
    """Run the programs named on the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("programs", nargs="+")
    arguments = parser.parse_args()

    record_path = arguments.results / f"rank{os.environ['RANK']}.jsonl"
    dist.init_process_group(backend=arguments.backend, timeout=GROUP_TIMEOUT)
    with record_path.open("a", buffering=1) as records:
        for name in arguments.programs:
            started = time.monotonic()
            faulthandler.dump_traceback_later(STACKS_SECONDS, exit=True)
            error = run_program(name)
            faulthandler.cancel_dump_traceback_later()
            record = {"program": name, "error": error, "seconds": time.monotonic() - started}
            records.write(json.dumps(record) + "\n")
            if error:
                return 1
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
