"""Generation B: two processes, each with a URL, and a read between GPUs without a wait.

python post_nvlink.py --role target --initiator-url HOST:PORT --target-url HOST:PORT
"""

from dlslime import Assignment, NVLinkEndpoint
from ends import expect, filled, finish, meet_by_two, parser_of


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--role", choices=["initiator", "target"], required=True)
    parser.add_argument("--initiator-url", default="127.0.0.1:6006")
    parser.add_argument("--target-url", default="127.0.0.1:6007")
    arguments = parser.parse_args()
    run_role(arguments.role, arguments.device, arguments.initiator_url, arguments.target_url)


def run_role(role: str, device: str, initiator: str, target: str) -> None:
    buffer = filled(16, 0 if role == "initiator" else 1, device)
    endpoint = NVLinkEndpoint()
    place = buffer.data_ptr(), buffer.storage_offset(), buffer.numel()
    endpoint.register_memory_region("buffer", *place)
    line = meet_by_two(*((initiator, target) if role == "initiator" else (target, initiator)))
    endpoint.connect(line.exchange(endpoint.endpoint_info))
    if role == "initiator":
        batch = [Assignment(mr_key="buffer", target_offset=0, source_offset=8, length=8)]
        assert endpoint.read_batch(batch) is None
        print(buffer)
        expect(buffer, [0] * 8 + [1] * 8, "the initiator's memory")
    line.exchange("read")
    if role == "target":
        expect(buffer, [1] * 16, "the target's memory")


if __name__ == "__main__":
    finish(main)
