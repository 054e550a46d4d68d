"""Reports of running processes, over the sockets that only their user can open."""

import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PREFIX = "@dlslime-inspect-"
_PATIENCE = 5.0  # seconds, for a process that is stopped or very busy
_MOST_BYTES = 64 << 20
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid, by the kernel

Report = dict[str, Any]


class JobError(Exception):
    """A process can't be asked; the text says why, and what to do."""


def sockets() -> Iterator[str]:
    """Yield the names of all sockets of processes that can be asked, in this network namespace."""
    for line in Path("/proc/net/unix").read_text().splitlines():
        name = line.split(" ")[-1]
        if name.startswith(_PREFIX):
            yield "\0" + name[1:]


def _connect(name: str) -> tuple[socket.socket, int] | None:
    """Return a connection and the pid of the process that listens; None if it is foreign or gone.

    Pid and user are the kernel's word: any user may make a socket of such a name.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_PATIENCE)
    try:
        connection.connect(name)
        size = _CREDENTIALS.size
        packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except OSError:
        connection.close()
        return None
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    if uid != os.geteuid():
        connection.close()
        return None
    return connection, pid


def _read(connection: socket.socket, pid: int) -> Report:
    text = b""
    try:
        while part := connection.recv(1 << 16):
            text += part
            if len(text) > _MOST_BYTES:
                raise JobError(f"process {pid} sends more than {_MOST_BYTES} bytes")
    except OSError as error:
        raise JobError(f"process {pid} does not answer: {error}") from None
    try:
        report = json.loads(text.decode(errors="replace"))
    except ValueError as error:
        raise JobError(f"process {pid} sends no report: {error}") from None
    wanted = {"groups": list, "operations": dict}
    if not isinstance(report, dict) or not all(
        isinstance(report.get(name), kind) for name, kind in wanted.items()
    ):
        raise JobError(f"process {pid} sends another kind of report: is it of this version?")
    # The kernel's pid, in this namespace: a process in a container has a pid of its own.
    return {**report, "pid": pid}


def reports(pid: int | None = None) -> list[Report]:
    """Return the reports of all processes of this user, or of one.

    A process that does not answer hides no other: without `pid`, those that answer are returned.

    Args:
        pid: of the one process, in the caller's pid namespace.

    Raises:
        JobError: there is no such process, or none answers.
    """
    found = []
    silent: JobError | None = None
    for name in sockets():
        connected = _connect(name)
        if connected is None:
            continue
        connection, owner = connected
        with connection:
            if pid in (None, owner):
                try:
                    found.append(_read(connection, owner))
                except JobError as error:
                    silent = error
    if not found:
        raise silent or JobError(_nothing(pid))
    return sorted(found, key=lambda report: int(report["pid"]))


def _nothing(pid: int | None) -> str:
    if pid is None:
        return (
            f"no process of uid {os.geteuid()} uses dlslime in this network namespace: run this as "
            "the job's user, in the job's container, once the job has made its first group"
        )
    if not Path(f"/proc/{pid}").exists():
        return f"there is no process {pid} in this pid namespace"
    owner = Path(f"/proc/{pid}").stat().st_uid
    if owner != os.geteuid():
        return (
            f"process {pid} belongs to uid {owner}, and only its user may ask: sudo -u '#{owner}'"
        )
    return (
        f"process {pid} has no dlslime engine in this network namespace: it has not made a group "
        "yet, or runs in a container (run this in there)"
    )
