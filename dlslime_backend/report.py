"""Reports for people: traffic by peer, routes, and why a route was taken."""

import os
from typing import Any

import torch
import torch.distributed as dist

_Group = dist.ProcessGroup | None

_COUNTERS = (
    "route",
    "copy",
    "sent_messages",
    "sent_bytes",
    "received_messages",
    "received_bytes",
    "eager_messages",
    "pushed_messages",
    "cuda_ipc_messages",
    "gpudirect_messages",
    "rendezvous_messages",
    "read_bytes",
    "written_bytes",
    "pending_sends",
    "pending_receives",
    "replaced_connections",
    "nics",
)


def backend_of(group: _Group) -> Any:
    """Return the dlslime backend of a process group.

    Args:
        group: None is the default group.

    Raises:
        ValueError: there is no default group, or the group does not use dlslime.
    """
    from dlslime_backend._load import extension

    found = group if group is not None else dist.group.WORLD
    if found is None:
        raise ValueError("dlslime: there is no process group; call init_process_group first")
    for device in found._device_types:
        backend = found._get_backend(torch.device(device))
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        if isinstance(backend, extension().Backend):
            return backend
    raise ValueError("dlslime: this process group does not use the dlslime backend")


def stats(group: _Group = None) -> dict[str, Any]:
    """Return counters of the traffic of this process in a group.

    Args:
        group: a process group with the dlslime backend; None is the default group.

    Returns:
        "rank" and "size": of this process in the group.

        "peers": by rank, for every rank used so far: "route" ("shm", "rdma", "tcp", "gloo", "self";
        empty before the pair is connected), "copy" (how large messages travel), numbers of messages
        and bytes sent and received; of the messages sent, how many went eager, pushed or by
        rendezvous; of the messages received, how many the GPU copied from a peer's GPU
        ("cuda_ipc_messages") and how many the NIC wrote into GPU memory ("gpudirect_messages");
        "read_bytes" and "written_bytes" of one-sided transfers begun by this process; pending
        operations; "replaced_connections": connections that were lost and replaced; "nics": of the
        present connection over RDMA a dict for each NIC, of its name "nic" ("mlx5_0:1"), "requests"
        given to it, and "sent_bytes" and "read_bytes", with all headers.

        "process": numbers of connections, groups and threads of the whole process.

        "operations": of the whole process, by kind ("send", "receive", "read", "write"): "count"
        and "bytes" of those that succeeded, and "microseconds" from the call to the end, by class
        of size ("to 8 KiB", "to 1 MiB", "above"; only classes in use): "count", "mean", "p50" and
        "p99", of which the last two are at most an eighth too large.

    Raises:
        ValueError: there is no default group, or the group does not use dlslime.
    """
    from dlslime_backend import histograms
    from dlslime_backend._load import extension

    backend = backend_of(group)
    peers = {entry["rank"]: {key: entry[key] for key in _COUNTERS} for entry in backend.report()}
    return {
        "rank": backend.rank(),
        "size": backend.size(),
        "peers": peers,
        "process": {
            "connections": backend.connections,
            "groups": backend.groups,
            "threads": len(os.listdir("/proc/self/task")),
        },
        "operations": histograms.summary(extension().operation_reports()),
    }


def write_flight_record(folder: str = "") -> tuple[str, str]:
    """Write the last 4,096 sends, receives and transfers of this process to files, as pickles.

    The form is that of torch's flight recorder. dlslime also writes both files at the first
    time-out and at the first abort with operations under way, and at the signal of
    DLSLIME_FLIGHT_SIGNAL.

    Args:
        folder: made if missing, for this user alone; default: DLSLIME_FLIGHT_DIR, or else
            `dlslime_flight_<uid>` in TMPDIR or /tmp.

    Returns:
        Paths of two files, named by the rank in the default group: of the operations under way, for
        torch's analyser (`torchfrtrace`, with the files of all ranks), and of all operations kept.

    Raises:
        ValueError: the process has no group.
        RuntimeError: the files can't be written, or the folder is of another user.
    """
    from dlslime_backend._load import extension

    unfinished, everything = extension().write_flight_record(folder)
    return unfinished, everything


def _own_network_namespace() -> int:
    return os.stat("/proc/self/ns/net").st_ino


def explain(peer: int, group: _Group = None) -> dict[str, Any]:
    """Return the route to a rank, and why no better route was taken.

    Connects to the rank if the pair is not connected; the rank must be in the group by then. Blocks
    up to the time-out of the group.

    Args:
        peer: rank in the group.
        group: a process group with the dlslime backend; None is the default group.

    Returns:
        "peer": the rank. "route". "copy": how large messages travel. "devices": the NICs, as
        "mlx5_0:1, mlx5_1:1", empty without NICs. "rejected": dicts of "route" and "reason", one for
        each route tried first. "text": the whole report as one sentence.

    Raises:
        ValueError: there is no such rank, no default group, or the group does not use dlslime.
        RuntimeError: the rank can't be reached; the text has the reason.
    """
    entry = backend_of(group).explain_peer(peer)
    rejected = entry["rejected"]
    text = f"rank {peer} (pid {entry['pid']} on {entry['host']}) is reached over {entry['route']}"
    if entry["route"] == "shm" and entry["network_namespace"] != _own_network_namespace():
        text += ", met in DLSLIME_RENDEZVOUS_DIR"
    text += f"; large messages go by {entry['copy']}"
    if entry["devices"]:
        text += f" over {entry['devices']}"
    if rejected:
        text += "; not over " + ", nor over ".join(
            f"{item['route']} ({item['reason']})" for item in rejected
        )
    return {
        "peer": peer,
        "route": entry["route"],
        "copy": entry["copy"],
        "devices": entry["devices"],
        "rejected": rejected,
        "text": text + ".",
    }
