"""Runs several of these programs one after the other in this process, which saves their start.

    python in_turn.py '[["today_rc_read", {"RANK": "0"}, ["--role", "target", ...]], ...]'

Each has a name, environment variables and arguments. The order of their imports is not
tried here, but what they do.
"""

import json
import os
import runpy
import sys

import dlslime  # noqa: F401  before torch, as the programs want it
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
