"""Checks of RDMA devices: nodes in /dev, ports, GIDs, partitions, links and losses."""

import os
from collections.abc import Iterator

from dlslime_backend.cli.finding import Finding, note, problem
from dlslime_backend.cli.host import Host

_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
# Counters of a port that grow when the network loses or delays packets.
LOSSES = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")
_WANTED_MTU = 4200  # bytes of Ethernet for RDMA packets of 4,096


def devices(host: Host) -> Iterator[Finding]:
    """Report RDMA devices, and those without a node in /dev."""
    if not host.rdma_devices():
        yield note(
            "RDMA",
            "the kernel shows no RDMA device: other hosts are reached by TCP",
            "on a machine with NICs: load the driver (mlx5_ib), or give the container its devices",
        )
        return
    for node in host.names("/sys/class/infiniband_verbs"):
        device = host.text(f"/sys/class/infiniband_verbs/{node}/ibdev")
        if device is not None:
            yield from _node(host, node, device)


def _node(host: Host, node: str, device: str) -> Iterator[Finding]:
    path = host.path(f"/dev/infiniband/{node}")
    if not path.exists():
        yield problem(
            device,
            f"the kernel shows {device}, but /dev/infiniband/{node} is missing here",
            "give the container the device: docker run --device=/dev/infiniband, or in Kubernetes "
            "an RDMA device plugin's resource (rdma/...)",
        )
    elif not os.access(path, os.R_OK | os.W_OK):
        yield problem(
            device,
            f"/dev/infiniband/{node} may not be opened by uid {os.geteuid()}",
            "let the user open it (group rdma, or a udev rule with mode 0666)",
        )


def ports(host: Host) -> Iterator[Finding]:
    """Report the state of each port, its rate, and counters of losses."""
    for device, port in host.rdma_ports():
        folder = f"/sys/class/infiniband/{device}/ports/{port}"
        name = f"{device}:{port}"
        state = (host.text(f"{folder}/state") or "?").split(":")[-1].strip()
        layer = host.text(f"{folder}/link_layer") or "?"
        text = f"{state}, {layer}, {host.text(f'{folder}/rate') or 'rate unknown'}"
        if state == "ACTIVE":
            yield Finding(name, text)
            yield from _losses(host, name, folder)
        elif layer == "InfiniBand" and (host.text(f"{folder}/sm_lid") or "0x0") == "0x0":
            yield problem(name, f"{text}; no subnet manager has seen it", "start a subnet manager")
        else:
            physical = host.text(f"{folder}/phys_state") or "?"
            yield note(name, f"{text} (physical state {physical})", "look at cable and switch")


def _losses(host: Host, name: str, folder: str) -> Iterator[Finding]:
    counts = {key: host.text(f"{folder}/hw_counters/{key}") for key in LOSSES}
    lost = [f"{key} {value}" for key, value in counts.items() if value not in (None, "", "0")]
    if lost:
        yield note(
            name,
            f"packets were lost or late since the machine's start: {', '.join(lost)}",
            "if these grow while a job runs: flow control (PFC) or ECN of the switch",
        )


def gids(host: Host) -> Iterator[Finding]:
    """Report ports without GIDs, and a GID index that does not exist."""
    wanted = host.variables.get("DLSLIME_GID_INDEX") or host.variables.get("NCCL_IB_GID_INDEX")
    for device, port in host.rdma_ports():
        folder = f"/sys/class/infiniband/{device}/ports/{port}"
        found = {
            int(index): text
            for index in host.names(f"{folder}/gids")
            if (text := host.text(f"{folder}/gids/{index}")) not in (None, "", _NO_GID)
        }
        name = f"{device}:{port} GIDs"
        kinds = {
            index: host.text(f"{folder}/gid_attrs/types/{index}") or "InfiniBand" for index in found
        }
        text = ", ".join(f"{index} {found[index]} ({kinds[index]})" for index in sorted(found))
        if not found:
            yield problem(
                name,
                "the port has no GID",
                "give its network interface an IP address (ip addr), in this network namespace",
            )
        elif wanted not in (None, "", "-1") and int(str(wanted)) not in found:
            yield problem(
                name,
                f"the GID index is set to {wanted}, but there is no such GID; there are: {text}",
                "unset DLSLIME_GID_INDEX and NCCL_IB_GID_INDEX (the best is taken), or set one of "
                "these",
            )
        else:
            yield Finding(name, text)


def links(host: Host) -> Iterator[Finding]:
    """Report limited partitions, small MTUs and slow PCI links."""
    for device, port in host.rdma_ports():
        folder = f"/sys/class/infiniband/{device}"
        if host.text(f"{folder}/ports/{port}/pkeys/0") == "0x7fff":
            yield note(
                f"{device}:{port}",
                "is a limited member of its partition: two limited members can't talk",
                "ask for full membership, or set DLSLIME_IB_PKEY",
            )
        interface = host.text(f"{folder}/ports/{port}/gid_attrs/ndevs/0")
        mtu = host.text(f"/sys/class/net/{interface}/mtu") if interface else None
        if mtu is not None and int(mtu) < _WANTED_MTU:
            yield note(
                f"{device}:{port}",
                f"{interface} has an MTU of {mtu}: RDMA packets are smaller than 4,096 bytes",
                f"ip link set {interface} mtu {_WANTED_MTU} or more, on the switch, too",
            )
    for device in host.rdma_devices():
        yield from _pci(host, device)


def _pci(host: Host, device: str) -> Iterator[Finding]:
    folder = f"/sys/class/infiniband/{device}/device"
    for what in ("speed", "width"):
        now = host.text(f"{folder}/current_link_{what}")
        most = host.text(f"{folder}/max_link_{what}")
        if now is not None and most is not None and now != most:
            yield note(
                device,
                f"its PCI link has a {what} of {now}, of {most} possible",
                "look at the slot and its riser",
            )
