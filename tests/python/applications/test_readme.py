"""The programs in the README run, and the links in all pages lead to existing files."""

from __future__ import annotations

import re
from pathlib import Path

from harness import dlslime_only
from paths import ROOT
from programs.torchrun import torchrun

PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
PAGES += [*ROOT.glob("docs/*.md"), *ROOT.glob("tests/**/README.md")]
PAGES += [*ROOT.glob("csrc/**/README.md"), *ROOT.glob("torch_ext/**/README.md")]

CHECK = """
assert got.equal(torch.ones(1 << 20))
import dlslime_backend
print("by", dlslime_backend.explain(peer)["route"], flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@dlslime_only
def test_four_lines_run(tmp_path: Path) -> None:
    (lines,) = re.findall(r"## Four lines\n\n```python\n(.*?)```", PAGES[0].read_text(), re.DOTALL)
    assert lines.count("\n") == 4
    program = tmp_path / "four_lines.py"
    program.write_text(lines + CHECK)
    status, output = torchrun(program, [], 2, tmp_path)
    assert status == 0, output
    assert output.count("by ") == 2, output


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
