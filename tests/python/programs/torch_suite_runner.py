"""Runs torch's own c10d tests (shipped in the wheel) against a backend chosen by name.

``torch.testing._internal.distributed.distributed_test`` decides in two ways whether a backend has a
feature: decorators compare the module's ``BACKEND`` with "gloo" or "nccl" at the definition of the
class, and a few helpers compare while a test runs. The decorators would skip tests for a
third-party name. So the module is imported as for gloo, and the name is put into the module
afterwards: each test executed in a gloo run is executed, with
``init_process_group(backend=<name>)``. torch's files are not changed.

Each test gets fresh processes, forked from the runner (with torch imported and without a process
group), so a test costs a fraction of a second instead of an import of torch per rank.

Usage: ``python torch_suite_runner.py --backend NAME --world-size N --results FILE [test ...]``. The
runner appends a JSON object a line to FILE: ``{"test", "outcome", "seconds", "text"}``, with the
outcome passed, skipped, failed, or absent if the installed torch has no test of the name.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

# Seconds after which a hanging test is killed, its ranks' stacks dumped, and counted as failed.
TEST_DEADLINE = "60"


def load_suite(backend: str, world_size: int, as_for: str) -> ModuleType:
    """Import torch's suite as for the backend ``as_for``, then point the suite at ``backend``."""
    os.environ.update(
        BACKEND=as_for,
        WORLD_SIZE=str(world_size),
        # Tests that initialise a second time require the form at the definition of the class.
        INIT_METHOD="file:///set-for-each-test",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=TEST_DEADLINE,
    )
    from torch.testing._internal import common_distributed

    # The group tests are switched off below 8 ranks although the tests only need 3.
    common_distributed.skip_if_small_worldsize = lambda test: test

    from torch.testing._internal.distributed import distributed_test

    os.environ["BACKEND"] = distributed_test.BACKEND = backend
    # Every point-to-point operation must show in the profiler as "<backend>:send" and so on.
    distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(backend)
    return distributed_test


def make_test_class(suite: ModuleType) -> type[unittest.TestCase]:
    """Join torch's tests with torch's process starter, forking instead of spawning."""
    import torch.multiprocessing

    class TorchSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            suite.INIT_METHOD = os.environ["INIT_METHOD"]
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def run_test(self, test_name: str, parent_pipe: Any) -> None:
            # The group exists by now. The tests choose a CPU model if BACKEND is "gloo".
            if test_name.startswith("test_accumulate_gradients"):
                suite.BACKEND = "gloo"
            super().run_test(test_name, parent_pipe)

    return TorchSuite


def run_one(case: unittest.TestCase) -> dict[str, Any]:
    """Run a test in forked ranks and return the outcome."""
    result = unittest.TestResult()
    started = time.monotonic()
    case.run(result)
    problems = result.failures + result.errors
    outcome = "failed" if problems else "skipped" if result.skipped else "passed"
    reports = problems or result.skipped
    return {
        "outcome": outcome,
        "seconds": round(time.monotonic() - started, 2),
        "text": reports[0][1] if reports else "",
    }


def main() -> int:
    """Run the named tests, or all tests, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True)
    parser.add_argument("--world-size", type=int, default=3)
    parser.add_argument("--as-for", choices=("gloo", "mpi"), default="gloo")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("tests", nargs="*")
    arguments = parser.parse_args()

    suite = load_suite(arguments.backend, arguments.world_size, arguments.as_for)
    test_class = make_test_class(suite)
    names = arguments.tests or unittest.TestLoader().getTestCaseNames(test_class)
    with arguments.results.open("a", buffering=1) as results:
        for name in names:
            outcome = {"outcome": "absent", "seconds": 0, "text": ""}
            if hasattr(test_class, name):
                outcome = run_one(test_class(name))
            results.write(json.dumps({"test": name} | outcome) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
