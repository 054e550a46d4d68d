"""What the backend does, for people: traffic, routes, and why a route was taken."""

import threading
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
)


def backend_of(group: _Group) -> Any:
    """Return the dlslime backend of a process group."""
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
    """Count the traffic of this process in a group.

    Args:
        group: a process group that uses dlslime; None is the default group.

    Returns:
        "rank" and "size" of this process in the group; "peers": for each rank that was used its
        route ("shm", "rdma", "tcp", "gloo", "self"; empty until connected), copy method, messages
        and bytes sent and received, how many of those sent were eager (copied at once), pushed
        (written into the memory of a posted receive) or rendezvous (announced, then fetched), how
        many of those received a GPU of ours copied from the peer's ("cuda_ipc"), bytes read and
        written by one-sided transfers, how many operations are pending, and how many connections
        were lost and replaced; "process": numbers of connections, groups and threads of the whole
        process.

    Raises:
        ValueError: there is no such group.
    """
    backend = backend_of(group)
    peers = {entry["rank"]: {key: entry[key] for key in _COUNTERS} for entry in backend.report()}
    return {
        "rank": backend.rank(),
        "size": backend.size(),
        "peers": peers,
        "process": {
            "connections": backend.connections,
            "groups": backend.groups,
            "threads": threading.active_count() + 2,  # progress and wire-up
        },
    }


def explain(peer: int, group: _Group = None) -> dict[str, Any]:
    """Tell by which route this process reaches a rank, and why not by a better one.

    Connects to the rank if nothing has yet, which takes the rank to be in the group.

    Args:
        peer: rank in the group.
        group: a process group that uses dlslime; None is the default group.

    Returns:
        "peer"; "route"; "copy": how large messages travel; "devices": the NICs, as "mlx5_0:1,
        mlx5_1:1", "" where there are none; "rejected": routes that were considered first, each with
        its reason; "text": all this as a sentence.

    Raises:
        ValueError: there is no such group or rank.
        RuntimeError: the rank can't be reached; the text says why.
    """
    entry = backend_of(group).explain_peer(peer)
    rejected = entry["rejected"]
    text = (
        f"rank {peer} (pid {entry['pid']} on {entry['host']}) is reached by {entry['route']}; "
        f"large messages go by {entry['copy']}"
    )
    if entry["devices"]:
        text += f" over {entry['devices']}"
    if rejected:
        text += "; not by " + ", nor by ".join(
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
