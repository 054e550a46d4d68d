"""The benchmarks of the pages with other libraries' engines that run without a NIC."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import dlslime_only
from test_benchmarks_of_pages import SHORT, TINY, files, found, ran
from wheels import original_dlslime

pytestmark = dlslime_only


@pytest.mark.parametrize("opcode", ["read", "write"])
def test_aggregated_transfers_of_the_original_by_tcp(tmp_path: Path, opcode: str) -> None:
    engines = ["--transfer-engine", "upstream-tcp", "--wheels", original_dlslime()]
    program = "agg_transfer_bench_spmd.py"
    more = ["--opcode", opcode, "--batch-size", "4", *files(tmp_path)]
    ran(program, *TINY, *SHORT, *engines, *more, ranks=2)
    rows, report = found(tmp_path)
    assert [row[:2] for row in rows[1:]] == [["upstream-tcp", "1"]] * 2
    assert [row["route"] for row in report["rows"]] == ["tcp"] * 2
