"""examples/prefill_decode.py between two hosts: decode on this host, prefill on the other.

Run by tests/lab/run_tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nodes

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "prefill_decode.py"
# A node reads torch and transformers from the host's files with a single processor.
SECONDS = 240


def test_tokens_are_those_of_one_process_where_the_cache_comes_from_another_host() -> None:
    command = [sys.executable, str(EXAMPLE), "--check", "--prompts", "33", "7", "150"]
    command += ["--tokens", "12", "--decode", f"{nodes.ADDRESS}:{nodes.free_port()}", "--role"]
    prefill = nodes.Launch([*command, "prefill"], {}, SECONDS)
    decode = subprocess.run(
        [*command, "decode"], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    status, output = prefill.result()
    print(output, decode.stdout, decode.stderr)
    assert (status, decode.returncode) == (0, 0)
    assert "decode is reached by rdma" in output
    assert decode.stdout.count("as in one process") == 3
