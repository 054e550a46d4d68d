"""vLLM's connector without vLLM: leases of blocks, and the workers that end them by messages."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import dlslime_backend
from dlslime_backend.integrations import _vllm_leases
from dlslime_backend.integrations._vllm_leases import DIGEST_BYTES, digest_of
from dlslime_backend.integrations._vllm_scheduler import Plan
from dlslime_backend.integrations._vllm_worker import Worker
from harness import dlslime_only
from polling import eventually
from test_foreign_requests import _worker as a_worker
from test_vllm_worker import load, source_of

pytestmark = dlslime_only


def reader_of(worker: Worker) -> dlslime_backend.Endpoint:
    endpoint = dlslime_backend.Endpoint("reader")
    endpoint.connect(worker._leases.address)
    return endpoint


def message(request: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(digest_of(request)), dtype=torch.uint8)


@pytest.mark.parametrize("nbytes", [0, 1, DIGEST_BYTES - 1, DIGEST_BYTES + 1, 1 << 20])
def test_reader_with_a_message_of_a_wrong_size_is_left_and_others_are_heard(nbytes: int) -> None:
    worker = a_worker("prefill", 7)
    liar, honest = reader_of(worker), reader_of(worker)
    for reader, name in ((liar, "a"), (honest, "b")):
        worker.start(Plan({}, {name: 60.0}))
        reader.send(message(name)).wait()
        eventually(lambda name=name: worker.finished()[0] == {name})
    worker.start(Plan({}, {"c": 60.0}))
    wrong = liar.send(torch.zeros(nbytes, dtype=torch.uint8))

    def left() -> bool:
        assert worker.finished() == (set(), set())
        return len(worker._leases._readers) == 1 and wrong.done()

    eventually(left)
    with pytest.raises(dist.DistBackendError):
        liar.recv(torch.zeros(1)).wait(20)
    honest.send(message("c")).wait()
    eventually(lambda: worker.finished()[0] == {"c"})
    worker.close()


def test_reader_that_leaves_is_forgotten_with_its_messages_heard() -> None:
    worker = a_worker("prefill", 7)
    names = {f"p{number}" for number in range(50)}
    worker.start(Plan({}, dict.fromkeys(names, 60.0)))
    with reader_of(worker) as reader:
        for name in names:
            reader.send(message(name))
    ended: set[str] = set()
    eventually(lambda: bool(ended.update(worker.finished()[0]) or ended == names))
    eventually(lambda: not worker.finished()[0] and not worker._leases._readers)
    worker.close()


def test_messages_of_one_reader_do_not_fill_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vllm_leases, "_MOST_MESSAGES", 2)
    worker = a_worker("prefill", 7)
    worker.finished()
    reader = reader_of(worker)
    for send in [reader.send(message(f"invented {number}")) for number in range(9)]:
        send.wait()
    for most in (2, 4, 6, 8, 9):
        eventually(lambda: not worker.finished()[0] and len(worker._leases._early) > 0)
        assert len(worker._leases._early) <= most
    worker.close()


def test_list_of_expired_leases_can_not_be_written_by_readers() -> None:
    worker = a_worker("prefill", 7)
    mine = dlslime_backend.register(torch.zeros(100, dtype=torch.uint8))
    theirs = dlslime_backend.import_region(worker._leases.export_expired())
    with reader_of(worker) as reader, pytest.raises(ValueError, match="read"):
        reader.write(mine, theirs, [(0, 0, 100)])
    mine.deregister()
    worker.close()


def test_closed_worker_ends_the_access_to_its_memory() -> None:
    worker, prefill = a_worker("decode", 0), a_worker("prefill", 7)
    source = source_of(prefill)
    assert load(worker, "first", source)
    assert prefill._loads.own is not None
    own = [*prefill._loads.own.regions, prefill._leases._region]
    prefill.close()
    assert not load(worker, "late", source)
    mine = dlslime_backend.register(torch.zeros(8, dtype=torch.uint8))
    with reader_of(worker) as reader:
        for region in own:
            theirs = dlslime_backend.import_region(region.export())
            with pytest.raises(ValueError, match="deregistered"):
                reader.read(mine, theirs, [(0, 0, 8)]).wait(20)
    mine.deregister()
    with pytest.raises(ValueError, match="shut down"):
        prefill.finished()
    worker.close()


def test_what_is_told_too_early_is_kept_in_few_bytes() -> None:
    worker = a_worker("prefill", 7)
    name = "n" * 4096
    worker._leases._on_read(digest_of(name), 0.0)
    assert all(len(key) == DIGEST_BYTES for key in worker._leases._early)
    worker.start(Plan({}, {name: 60.0}))
    assert worker.finished()[0] == {name}
    worker.close()
