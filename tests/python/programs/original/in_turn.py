"""Runs several programs of the folder in turn in one process, which saves their start.

    python in_turn.py '[["today_rc_read", {"RANK": "0"}, ["--role", "target", ...]], ...]'

Each program has a name, environment variables and arguments. The run tests the programs' calls, not
the order of their imports.
"""

import json
import os
import runpy
import sys

import dlslime  # noqa: F401  before torch, as the programs require
from catalogue import FOLDERS, path_of

sys.path[1:1] = FOLDERS[1:]


def main() -> None:
    for program, environment, arguments in json.loads(sys.argv[1]):
        path = path_of(program)
        print(f"{program}: begins", flush=True)
        os.environ.update(environment)
        sys.argv = [path, *arguments]
        runpy.run_path(path, run_name="__main__")
        for name in environment:
            del os.environ[name]


if __name__ == "__main__":
    main()
