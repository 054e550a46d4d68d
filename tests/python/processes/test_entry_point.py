"""The name "dlslime" without an import; no installation of dlslime can break torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import dlslime_only

pytestmark = dlslime_only

ALONE = """
import sys, torch, torch.distributed as dist
assert "dlslime_backend._C" not in sys.modules, "loaded before the first use"
dist.init_process_group("dlslime", store=dist.HashStore(), rank=0, world_size=1)
received = torch.zeros(3)
works = [dist.isend(torch.ones(3), 0), dist.irecv(received, 0)]
for work in works:
    work.wait()
assert received.tolist() == [1, 1, 1]
assert dist.get_backend() == "dlslime"
print("done")
"""
AFTER_IMPORT = "\n".join(line for line in ALONE.splitlines() if "loaded before" not in line)


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter with `env` added to the environment."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **env},
        cwd="/",  # not in the sources' folder: the installed package is the subject
    )


def expect_done(process: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a program; raise AssertionError unless the program printed "done"."""
    text = process.stdout + process.stderr
    assert process.returncode == 0, text
    assert process.stdout.strip().endswith("done"), text
    return text


def test_backend_is_found_without_an_import_and_exits_without_destroy() -> None:
    expect_done(run_python(ALONE))


def test_import_before_torch_and_after_it() -> None:
    expect_done(run_python("import dlslime_backend, torch\n" + AFTER_IMPORT))
    expect_done(run_python("import torch, dlslime_backend\n" + AFTER_IMPORT))


GLOO_ONLY = """
import torch, torch.distributed as dist
dist.init_process_group("cpu:gloo,cuda:gloo", store=dist.HashStore(), rank=0, world_size=1)
assert dist.group.WORLD.name() == "gloo", dist.group.WORLD.name()
tensor = torch.ones(2)
dist.all_reduce(tensor)
dist.barrier()
dist.destroy_process_group()
print("done")
"""


def test_program_that_never_asks_for_it_is_not_changed() -> None:
    code = "import sys\n" + GLOO_ONLY.replace(
        'print("done")', 'assert "dlslime_backend._C" not in sys.modules; print("done")'
    )
    text = expect_done(run_python(code))
    assert "warning" not in text.lower()


def test_name_without_autoload_needs_the_import() -> None:
    code = "import dlslime_backend\n" + AFTER_IMPORT
    expect_done(run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0"))


def _broken_copy(folder: Path, damage: str) -> Path:
    """Copy the package with a compiled module that is no shared object, or fails to load."""
    import dlslime_backend

    source = Path(dlslime_backend.__file__).parent
    copy = folder / "dlslime_backend"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for module in copy.glob("lib/torch_*/_C*.so"):
        module.write_bytes(b"this is no shared object")
        if damage == "fails":
            module.unlink()
            (module.parent / "_C.py").write_text("raise ImportError('undefined symbol: c10d')")
    return folder


@pytest.mark.parametrize("damage", ["fails", "garbage"])
def test_broken_installation_does_not_break_torch(tmp_path: Path, damage: str) -> None:
    paths = str(_broken_copy(tmp_path, damage))
    expect_done(run_python(GLOO_ONLY, PYTHONPATH=paths))
    failed = run_python(ALONE, PYTHONPATH=paths)
    assert failed.returncode == 1, "an exception and no crash"
    assert failed.stderr.splitlines()[-1].startswith("ImportError"), failed.stderr
    assert "dlslime" in failed.stderr


def test_hook_swallows_whatever_goes_wrong(tmp_path: Path) -> None:
    """Even a package that cannot register leaves `import torch` alone."""
    code = (
        "import sys, importlib.abc\n"
        "class Block(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('dlslime_backend.') and not name.endswith('_hook'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n" + GLOO_ONLY
    )
    expect_done(run_python(code))


def test_other_torch_version_is_refused_with_a_clear_text() -> None:
    code = (
        "import torch, torch.distributed as dist\n"
        "torch.__version__ = '2.99.0'\n"
        "dist.init_process_group('dlslime', store=dist.HashStore(), rank=0, world_size=1)\n"
    )
    failed = run_python(code)
    assert failed.returncode == 1, "an exception and no crash"
    assert "2.99" in failed.stderr
    assert "built for" in failed.stderr.lower()


def test_stub_names_what_the_compiled_module_has() -> None:
    import ast

    import dlslime_backend
    from dlslime_backend import _C

    stub = Path(dlslime_backend.__file__).parent / "_C.pyi"
    declared = {
        node.name
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    missing = {name for name in declared if not hasattr(_C, name)}
    assert not missing
    assert (stub.parent / "py.typed").exists()


EXIT = """
import os, sys, torch, torch.distributed as dist
rank, port = int(sys.argv[1]), int(sys.argv[2])
store = dist.TCPStore("127.0.0.1", port, is_master=False)
dist.init_process_group("dlslime", store=store, rank=rank, world_size=2)
if rank == 0:
    dist.send(torch.full((10,), 5.0), 1)
    work = dist.irecv(torch.zeros(3), 1, tag=9)  # never matched
    thread_keeps = dist.isend(torch.zeros(1 << 20), 1, tag=8)  # neither
    print("done")
else:
    store.wait(["rank 0 ended"])
    received = torch.zeros(10)
    dist.recv(received, 0)
    assert received.tolist() == [5.0] * 10
    print("done")
"""


def test_interpreter_exits_without_destroy_and_its_message_arrives() -> None:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", EXIT, str(rank), str(store.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        output = ranks[0].communicate(timeout=60)[0]
        assert ranks[0].returncode == 0, output
        store.set("rank 0 ended", "1")
        output = ranks[1].communicate(timeout=60)[0]
        assert ranks[1].returncode == 0, output
        assert "done" in output
    finally:
        for process in ranks:
            process.kill()
