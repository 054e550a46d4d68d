"""Each name of the original DLSlime's wheel 0.1.23 exists or has a reason; its variables."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dlslime_backend.compat import dlslime
from dlslime_backend.compat.dlslime import devices, variables
from dlslime_backend.compat.dlslime.core import observability
from harness import dlslime_only
from wheels import original_dlslime

pytestmark = dlslime_only

# The names of the wheel's package and of its classes.
NAMES_OF_WHEEL = """
import json, dlslime
from dlslime import _slime_c
def public(thing):
    return sorted(name for name in dir(thing) if not name.startswith("_"))
print(json.dumps({
    "dlslime": public(dlslime),
    "_slime_c": public(_slime_c),
    **{name: public(found) for name, found in vars(_slime_c).items() if isinstance(found, type)},
}))
"""
SERVICES = "stands on the services NanoCtrl and Redis"
REASONS = {
    "dlslime": {
        "PeerAgent": SERVICES,
        "start_peer_agent": SERVICES,
        "cache": SERVICES,
        "rpc": SERVICES,
        "DeviceSignal": "a signal of its GPU kernels, of which the wheel has none",
        "TcpMemoryPool": "what TcpEndpoint keeps to itself: no argument takes one",
        "get_cmake_dir": "it has no C++ headers to build with",
        "logging": "the standard library's",
        "os": "the standard library's",
        "obs_register_nic_for_test": "its counters are not by NIC: see dlslime_backend.stats()",
    },
    "_slime_c": {
        "DeviceSignal": "as above",
        "TcpMemoryPool": "as above",
        "cache": SERVICES,
        "rpc": SERVICES,
        "obs_register_nic_for_test": "as above",
    },
    "RDMAMemoryPool": {
        "register_dmabuf_memory_region": "memory of a GPU is registered by its address",
    },
}


def names_of_wheel() -> dict[str, list[str]]:
    environment = {**os.environ, "PYTHONPATH": str(original_dlslime()), "DLSLIME_PROVIDE": ""}
    done = subprocess.run(
        [sys.executable, "-c", NAMES_OF_WHEEL],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_each_name_of_the_wheel_is_here_or_has_a_reason() -> None:
    theirs = names_of_wheel()
    assert len(theirs["RDMAEndpoint"]) > 10
    lacking = {}
    for place, names in theirs.items():
        reasons = REASONS.get(place, {})
        assert set(reasons) <= set(names), f"reasons for what {place} has not"
        if place in REASONS["_slime_c"]:
            continue
        ours: Any = dlslime if place in ("dlslime", "_slime_c") else getattr(dlslime, place)
        ours = ours.READ if place == "OpCode" else ours  # only the members of OpCode have the names
        lacking[place] = [n for n in names if not hasattr(ours, n) and n not in reasons]
        assert not [n for n in reasons if hasattr(ours, n)], f"{place} has what it should not"
    assert not any(lacking.values()), lacking


# --- variables ------------------------------------------------------------------------------------


def test_variables_of_the_original_set_ours() -> None:
    given = {
        "SLIME_VISIBLE_DEVICES": "mlx5_0,mlx5_1",
        "SLIME_GID_INDEX": "3",
        "SLIME_SERVICE_LEVEL": "2",
        "SLIME_QP_NUM": "64",
        "SLIME_LOG_LEVEL": "2",
    }
    environment = dict(given)
    variables.take_over(environment)
    assert {name: environment[name] for name in environment if name not in given} == {
        "DLSLIME_NICS": "mlx5_0,mlx5_1",
        "DLSLIME_GID_INDEX": "3",
        "DLSLIME_IB_SL": "2",
        "DLSLIME_QPS_PER_NIC": "8",
        "DLSLIME_LOG": "debug",
    }


def test_ours_goes_before_theirs_and_defaults_stay_defaults() -> None:
    environment = {"SLIME_GID_INDEX": "-1", "SLIME_QP_NUM": "2", "DLSLIME_QPS_PER_NIC": "4"}
    variables.take_over(environment)
    assert environment["DLSLIME_QPS_PER_NIC"] == "4"
    assert "DLSLIME_GID_INDEX" not in environment
    with pytest.raises(ValueError, match="SLIME_QP_NUM='many' is not a number"):
        variables.take_over({"SLIME_QP_NUM": "many"})


def test_variables_without_a_meaning_are_named_in_one_line(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="dlslime"):
        variables.take_over({"SLIME_CQ_NUM": "1", "SLIME_AGG_QP_NUM": "2", "SLIME_QP_NUM": "1"})
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "SLIME_AGG_QP_NUM, SLIME_CQ_NUM"
    ]


# --- devices, loggers, counters -------------------------------------------------------------------


def a_host(folder: Path) -> Path:
    for name, state, node in (("mlx5_0", "4: ACTIVE", 1), ("mlx5_1", "1: DOWN", -1)):
        port = folder / "class/infiniband" / name / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "link_layer").write_text("Ethernet\n")
        (port.parents[1] / "device").mkdir()
        (port.parents[1] / "device/numa_node").write_text(f"{node}\n")
    return folder


def test_topology_is_that_of_sysfs(tmp_path: Path) -> None:
    root = str(a_host(tmp_path))
    found = devices.discover_topology(preferred_device="mlx5_1", sysfs_root=root)
    assert [nic["name"] for nic in found["nics"]] == ["mlx5_1", "mlx5_0"]
    assert found["nics"][1]["ports"] == [{"port": 1, "state": "ACTIVE", "link_type": "Ethernet"}]
    assert [nic["health"] for nic in found["nics"]] == ["UNAVAILABLE", "AVAILABLE"]
    assert found["nics"][1]["numa_node"] == 1
    only = devices.discover_topology(sysfs_root=root, devices=["mlx5_0"])
    assert [nic["name"] for nic in only["nics"]] == ["mlx5_0"]
    assert json.dumps(found)


def test_there_is_always_a_device_to_name() -> None:
    assert dlslime.available_nic()
    assert dlslime.avaliable_nic() == dlslime.available_nic()
    assert dlslime.socket_id(dlslime.available_nic()[0]) >= 0


def test_levels_of_loggers() -> None:
    logger = dlslime.set_log_level("info", configure_handler=False)
    assert logger is dlslime.get_logger()
    assert logger.level == logging.INFO
    assert dlslime.get_logger("rpc").name == "slime.rpc"
    dlslime.set_log_level(logging.NOTSET, configure_handler=False)


def test_operations_are_counted_when_that_is_asked_for(monkeypatch: Any) -> None:
    assert dlslime.obs_snapshot() == {"enabled": False}
    monkeypatch.setattr(observability, "_enabled", True)
    dlslime.obs_reset_for_test()
    mine, theirs = dlslime.RDMAEndpoint(), dlslime.RDMAEndpoint()
    caches = [torch.zeros(100, dtype=torch.uint8) for _ in range(2)]
    for endpoint, cache in zip((mine, theirs), caches, strict=True):
        endpoint.register_memory_region("cache", cache.data_ptr(), 0, 100)
    mine.connect(theirs.endpoint_info())
    theirs.connect(mine.endpoint_info())
    mine.read([(0, 0, 0, 0, 10), (0, 0, 20, 20, 10)]).wait()
    waiting = mine.imm_recv()
    found = dlslime.obs_snapshot()["summary"]
    assert (found["batch_total"], found["assign_total"]) == (2, 3)
    assert found["completed_bytes_total"] == found["submitted_bytes_total"] == 20
    assert found["pending_by_op"]["imm_recv"] == found["pending_ops"] == 1
    assert found["mr_count"] >= 2
    mine.shutdown()
    assert waiting.wait() == 403
    assert dlslime.obs_snapshot()["summary"]["error_total"] == 1
    theirs.shutdown()
