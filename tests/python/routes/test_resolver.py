"""Machines with a name service that never answers, or refuses: no group waits for it.

torch looks up the name of each address that a store's client connects to, and a look-up may take
seconds; a group may not add any look-up. Only a thread apart asks once, to warn of the seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import dlslime_only

pytestmark = dlslime_only

SHIM = r"""
#define _GNU_SOURCE
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>

/* Takes the place of the C library's: says that it was asked, and has no answer. */
static int unanswered(void) {
  char thread[16] = "";
  pthread_getname_np(pthread_self(), thread, sizeof(thread));
  if (strcmp(thread, "dlslime-names") == 0) {
    return EAI_AGAIN; /* of the warning: no group waits */
  }
  const int file = open(getenv("LOOKUPS"), O_WRONLY | O_APPEND | O_CREAT, 0600);
  if (file < 0 || write(file, "x", 1) != 1) {
    abort();
  }
  close(file);
  if (getenv("SILENT") != NULL) {
    sleep(1);
    return EAI_AGAIN;
  }
  return EAI_FAIL;
}

int getnameinfo(const struct sockaddr* address, socklen_t size, char* host, socklen_t host_size,
                char* service, socklen_t service_size, int flags) {
  (void)address; (void)size; (void)host; (void)host_size; (void)service; (void)service_size;
  (void)flags;
  return unanswered();
}
"""

PROGRAM = """
import os, sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
file = os.environ["LOOKUPS"]
asked = lambda: os.path.getsize(file) if os.path.exists(file) else 0
store = dist.TCPStore("127.0.0.1", int(sys.argv[2]), 2, rank == 0)
dist.init_process_group("dlslime", store=store, rank=rank, world_size=2)
before = asked()
received = torch.zeros(1000)
for size in (10, 1000):
    works = [dist.isend(torch.full((size,), 1.0 + rank), 1 - rank), dist.irecv(received, 1 - rank)]
    for work in works:
        work.wait()
    assert received[0] == 2.0 - rank
total = torch.ones(3)
dist.all_reduce(total)
assert total.tolist() == [2.0] * 3
group = dist.new_group()
dist.barrier(group)
dist.all_reduce(total, group=group)
after = asked()
dist.barrier()
dist.destroy_process_group()
print("lookups:", after - before)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library that replaces the C library's resolver when preloaded."""
    folder = tmp_path_factory.mktemp("resolver")
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM)
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize("route", ["auto", "tcp", "gloo"])
@pytest.mark.parametrize("resolver", ["never_answers", "refuses"])
def test_groups_ask_no_resolver(shim: Path, tmp_path: Path, resolver: str, route: str) -> None:
    import nodes

    port = str(nodes.free_port())
    env = {**os.environ, "LD_PRELOAD": str(shim), "DLSLIME_ROUTE": route}
    if resolver == "never_answers":
        env["SILENT"] = "1"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), port],
            env={**env, "LOOKUPS": str(tmp_path / f"lookups{rank}")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=180)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], outputs
    assert all("lookups: 0" in output for output in outputs), outputs
    # torch has asked for the store's address, or the shim would not be in use.
    assert (tmp_path / "lookups1").exists()
