"""Generation A: two processes, each with a port, and a message of 8 bytes to offset 8.

python oldest_sendrecv.py --mode recv --local-port 6006 --remote-port 6007 &
python oldest_sendrecv.py --mode send --local-port 6007 --remote-port 6006
"""

import asyncio

import slime
from ends import expect, filled, finish, meet_by_two, parser_of


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--mode", choices=["send", "recv"], required=True)
    parser.add_argument("--remote-host", default="127.0.0.1")
    parser.add_argument("--remote-port", type=int, default=6007)
    parser.add_argument("--local-port", type=int, default=6006)
    arguments = parser.parse_args()
    sends = arguments.mode == "send"

    nics = slime.available_nic()
    endpoint = slime.RDMAEndpoint(nics[0 if sends else -1], 1, "Ethernet")
    buffer = filled(16, 1 if sends else 0, arguments.device)
    endpoint.register_memory_region("buffer", buffer.data_ptr(), 16)
    line = meet_by_two(
        f":{arguments.local_port}", f"{arguments.remote_host}:{arguments.remote_port}"
    )
    endpoint.connect_to(line.exchange(endpoint.local_endpoint_info))

    if sends:
        assert asyncio.run(endpoint.send_async("buffer", 0, 8)) == 0
        expect(buffer, [1] * 16, "what was sent")
    else:
        assert asyncio.run(endpoint.recv_async("buffer", 8, 8)) == 0
        print(buffer)
        expect(buffer, [0] * 8 + [1] * 8, "what came")
    line.exchange("over")


if __name__ == "__main__":
    finish(main)
