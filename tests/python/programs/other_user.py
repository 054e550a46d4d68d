"""A process of another user on the host, run by test_trust: prints results as JSON.

other_user.py connect ADDRESS [TIMES]   # of an endpoint, in hex: greets the endpoint's process
other_user.py listen NAME               # an abstract socket: accepts until the input ends
"""

import array
import json
import os
import select
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from raw_handshake import Address, Initiator, blob, connect_to

NOBODY = 65534


def connect(address: str, times: str = "1") -> dict[str, object]:
    """Count the bytes sent by a listener to a stranger that knows the address record and token."""
    known = Address.of_endpoint(bytes.fromhex(address))
    answered = 0
    for _ in range(int(times)):
        client = connect_to(known.socket_name)
        try:
            client.sendall(blob(Initiator(known).greeting()))
            answered += len(client.recv(4096))
        except ConnectionError:
            pass
        client.close()
    return {"answered": answered}


def listen(name: str) -> dict[str, object]:
    """Count the bytes and descriptors sent to a stranger that listens at a process's address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(b"\0" + name.encode())
    listener.listen()
    print("listening", flush=True)
    room = socket.CMSG_SPACE(16 * array.array("i").itemsize)
    got = {"connections": 0, "bytes": 0, "descriptors": 0}
    while listener in select.select([listener, sys.stdin], [], [], 60)[0]:
        peer, _ = listener.accept()
        peer.settimeout(10)
        data, extras, _, _ = peer.recvmsg(4096, room)
        got["connections"] += 1
        got["bytes"] += len(data)
        got["descriptors"] += len(extras)
    return got


if __name__ == "__main__":
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    print(json.dumps({"connect": connect, "listen": listen}[sys.argv[1]](*sys.argv[2:])))
