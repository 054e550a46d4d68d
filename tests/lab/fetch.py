"""Fetches the files of vLLM, SGLang and LMDeploy that test_libraries needs, unless present.

Run before the lab starts, since its hosts reach no package index.
"""

from __future__ import annotations

import conftest  # noqa: F401 (finds the modules of tests/python)
import test_lmdeploy
import test_sglang
import vllm_files


def fetch() -> None:
    """Fetch the missing files."""
    vllm_files.unpack()
    test_sglang.unpack()
    test_lmdeploy.unpack()


if __name__ == "__main__":
    fetch()
