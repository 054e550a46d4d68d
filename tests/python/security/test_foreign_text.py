"""Malformed input from processes and with requests: only documented errors are raised.

Every decoder is fed with changed documents (`mutations`), and vLLM's connector with requests that
contain changed documents: such a request fails, or is computed by the decode engine, and nothing
else happens.
"""

from __future__ import annotations

import base64
import functools
import json
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import strategies as st

from dlslime_backend import Endpoint, _untrusted, import_region, register
from dlslime_backend.compat import dlslime as upstream
from dlslime_backend.compat.nixl import _bindings as b
from dlslime_backend.compat.nixl import _remote, nixl_agent
from harness import dlslime_only
from mutations import TEXTS, as_json, changed, damaged, fuzzed, nested

pytestmark = dlslime_only

MEMORY = torch.arange(64, dtype=torch.uint8)
NIXL = (b.nixlMismatchError, b.nixlInvalidParamError, b.nixlNotFoundError)


@functools.cache
def exported() -> bytes:
    return register(MEMORY, "of test_foreign_text").export()


@functools.cache
def endpoint() -> Endpoint:
    return Endpoint()


def refusing(kinds: Any, decode: Callable[..., Any], *args: Any) -> bool:
    """Call a decoder that may raise errors of `kinds`, with a text of bounded size."""
    text = ""
    try:
        decode(*args)
    except kinds as error:
        text = str(error)
    assert len(text) < 2000
    return text != ""


# The module used by all decoders.


@pytest.mark.parametrize(
    ("text", "why"),
    ids=lambda value: value[:20].encode("ascii", "backslashreplace").decode(),
    argvalues=[
        ("[" * 292, "nested more than 8"),
        ("[" * 400 + "]" * 400, "nested more than 8"),
        ("[" * 40_000, "more than 1000 values"),
        ('{"a":' * 9 + "1" + "}" * 9, "nested more than 8"),
        ('["\\\\", ' + "[" * 300, "nested more than 8"),  # an escaped backslash ends no escape
        ("1e999", "'1e999' in JSON is not finite"),
        ("[NaN]", "'NaN' in JSON is not finite"),
        ("-Infinity", "'-Infinity' in JSON is not finite"),
        ("9" * 41, "more than 40 digits"),
        ("[" + "0," * 2000 + "0]", "more than 1000 values"),
        ('"' * 5000, "more than 1000 values"),
        (" " * 100_001, "100001 bytes of JSON; at most 100000"),
        ('["\ud800"]', "surrogates not allowed"),
        ("", "Expecting value"),
    ],
)
def test_json_is_bounded_in_depth_size_and_numbers(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        _untrusted.parse_json(text, most_bytes=100_000, most_values=1000)


def test_brackets_quotes_and_digits_in_texts_count_for_nothing() -> None:
    value = {'"[' * 50: ["[[[[[[[[[[" * 30, "\\", '\\"[{', "9" * 5000, 1.5, -(10**39), None]}
    for text in (json.dumps(value), json.dumps(value, indent=1).encode()):
        assert _untrusted.parse_json(text, most_bytes=100_000) == value
    with pytest.raises(ValueError, match="can't decode"):
        _untrusted.parse_json("[]".encode("utf-16"), most_bytes=100)


@pytest.mark.parametrize("part", ["[", '"', '\\"', '"\\', "[],", '"",', "9", "{", "0,", "\\"])
def test_sixteen_megabytes_of_anything_are_refused_at_once(part: str) -> None:
    text = part * ((16 << 20) // len(part))
    begun = time.monotonic()
    with pytest.raises(ValueError, match="JSON|Expecting|Unterminated|Invalid"):
        _untrusted.parse_json(text, most_bytes=16 << 20)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    "wrong",
    [1e999, float("nan"), 1.0, True, None, "1", -1, 8, pytest.param(10**5000, id="huge"), []],
)
def test_integers_are_integers_of_a_range(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^count is .{1,120}, not an integer from 0 to 7$"):
        _untrusted.integer(wrong, "count", 0, 7)


def test_errors_name_the_field_and_show_a_cut_and_escaped_value() -> None:
    for value in (nested(100_000), "\n\x1b[31m" * 999, [[["\n" * 99] * 99] * 99] * 99, b"\0" * 999):
        assert _untrusted.shown(value).isprintable()
        assert len(_untrusted.shown(value)) < 130
    assert _untrusted.printable("a\n\ud800é") == "a\\n\\ud800é"
    with pytest.raises(ValueError, match=r"^name is '\\ud800', which UTF-8 can't encode$"):
        _untrusted.text("\ud800", "name", 5)
    with pytest.raises(ValueError, match="it has no a, b; 1 keys are there: "):
        _untrusted.fields({"c": 1}, "it", ["a", "b"])
    with pytest.raises(ValueError, match="has more than 10 bytes uncompressed"):
        _untrusted.decompress(zlib.compress(bytes(10_000_000)), "it", 10)
    secret = base64.b64encode(exported()).decode()
    with pytest.raises(ValueError, match="no base64") as error:
        _untrusted.decode_base64("!" + secret, "a region", 10_000)
    assert secret[8:16] not in str(error.value)


@fuzzed(500, text=TEXTS)
def test_any_text_is_json_or_refused(text: str) -> None:
    refusing(ValueError, lambda: _untrusted.parse_json(text, most_bytes=1 << 20))


# Handles and addresses, decoded by the extension.


@fuzzed(300, content=st.deferred(lambda: damaged(exported())))
def test_damaged_handles_of_regions_are_refused(content: bytes) -> None:
    refusing(ValueError, lambda: import_region(content).name)


@fuzzed(300, content=st.deferred(lambda: damaged(endpoint().address)))
def test_damaged_addresses_are_refused(content: bytes) -> None:
    with Endpoint() as other:
        refusing(ValueError, other.connect, content)


@pytest.mark.parametrize("length", [0, 3])
def test_an_immediate_of_another_size_is_refused(length: int) -> None:
    one, other = Endpoint(), Endpoint()
    with one, other:
        one.connect(other.address)
        other.connect(one.address)
        told = other.expect_imm()
        one._link.send_note(1, bytes(length))
        with pytest.raises(ValueError, match=f"is of {length} bytes, not of 4"):
            told.wait(10)


# The original DLSlime's API.


@functools.cache
def dlslime_pair() -> tuple[upstream.RDMAEndpoint, dict[str, Any]]:
    made = upstream.RDMAEndpoint()
    for key in (0, "two"):
        made.register_memory_region(key, MEMORY.data_ptr(), 0, MEMORY.nbytes)
    return made, json.loads(json.dumps(made.endpoint_info()))


def dlslime_info() -> dict[str, Any]:
    return dict(dlslime_pair()[1])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"address": None}, "address is None, not a base64 text"),
        ({"address": "é"}, "address .1 characters. is no base64"),
        ({"mr_info": ["0"]}, "mr_info is .'0'., not an object"),
        ({"mr_info": {"x": ""}}, "the entry of 'x' is '', not an object"),
        ({"mr_info": {"9" * 5000: ""}}, "a key of mr_info has 5000 characters"),
        ({"mr_info": {0: ""}}, "a key of mr_info is 0, not a text"),
        (
            {"mr_info": {"x": {"handle": -1}}},
            "the handle of 'x' is -1, not an integer from 0 to 4294967295",
        ),
        (
            {"mr_info": {"x": {"handle": True}}},
            "the handle of 'x' is True, not an integer from 0 to 4294967295",
        ),
        ({"mr_info": {"x": {"handle": 0}}}, "the remote region 'x' is not of dlslime_backend"),
        ({"mr_info": {"x": {"handle": 0, "region": 5}}}, "the remote region 'x' is an object of"),
        ({"dlslime_backend": 1, 7: 7}, "not of dlslime_backend's version 2 .its version is 1"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_connect_of_the_original_refuses_malformed_info_whole(change: Any, why: str) -> None:
    made = upstream.RDMAEndpoint()
    with pytest.raises(ValueError, match=why):
        made.connect({**dlslime_info(), **change})
    for missing in ("address", "mr_info"):
        rest = {key: value for key, value in dlslime_info().items() if key != missing}
        with pytest.raises(ValueError, match=f"it has no {missing}; 5 keys are there"):
            made.connect(rest)
    for other in (None, [], "text", 5):
        with pytest.raises(ValueError, match="not of dlslime_backend"):
            made.connect(other)  # type: ignore[arg-type]
    assert not list(made._remote.named())
    made.connect(dlslime_info())  # a refusal leaves the endpoint unconnected
    assert sorted(name for name, _, _ in made._remote.named()) == ["0", "mr_0", "two"]
    made.shutdown()


@fuzzed(300, info=st.deferred(lambda: changed(dlslime_info())))
def test_changed_info_of_the_original_is_refused(info: Any) -> None:
    made = upstream.RDMAEndpoint()
    refusing(ValueError, made.connect, info)
    refusing(ValueError, made.register_remote_memory_region, 0, info)
    made.shutdown()


# NIXL's API.


@functools.cache
def agents() -> tuple[nixl_agent, nixl_agent]:
    one, other = nixl_agent("one"), nixl_agent("other")
    other.register_memory(MEMORY)
    return one, other


def metadata() -> bytes:
    return agents()[1].get_agent_metadata()


def _add(content: bytes) -> None:
    one = agents()[0]
    known = dict(one._remotes)
    if not refusing(NIXL, one.add_remote_agent, content):
        for name in set(one._remotes) - set(known):
            one.remove_remote_agent(name)


@fuzzed(300, content=st.deferred(lambda: damaged(metadata())))
def test_damaged_metadata_is_refused(content: bytes) -> None:
    _add(content)


@fuzzed(300, value=st.deferred(lambda: changed(json.loads(metadata()))))
def test_changed_metadata_is_refused(value: Any) -> None:
    _add(as_json(value).encode())


def test_refused_metadata_leaves_what_is_known() -> None:
    one, other, successor = nixl_agent("one"), nixl_agent("other"), nixl_agent("other")
    other.register_memory(MEMORY)
    one.add_remote_agent(other.get_agent_metadata())
    fresh = json.loads(successor.get_agent_metadata())
    for name in ("other", "third"):
        wrong = json.dumps([fresh[0], name, *fresh[2:], "AAAA"]).encode()
        with pytest.raises(b.nixlMismatchError):
            one.add_remote_agent(wrong)
    assert not one.check_remote_metadata("third")
    known = one.get_xfer_descs(MEMORY)
    assert one.check_remote_metadata("other", known)
    one.make_connection("other")


ROWS = [[2**64 - 1, 16, 0], [MEMORY.data_ptr(), 1, 3]]


@fuzzed(300, value=changed(["xfer", "DRAM_SEG", ROWS]))
def test_changed_descriptors_are_refused(value: Any) -> None:
    refusing(b.nixlMismatchError, b.deserialized, as_json(value).encode())


@fuzzed(300, content=damaged(b.serialized(b.nixlRegDList(b.VRAM_SEG, ROWS))))
def test_damaged_descriptors_are_refused(content: bytes) -> None:
    refusing(b.nixlMismatchError, b.deserialized, content)


@pytest.mark.parametrize(
    "rows", [[[1, 2]], [[1, 2, -1]], [[1, 2, 2**64]], [[1, 2, True]], [[1, 2, 1.0]], ["abc"], 3]
)
def test_descriptors_are_lists_of_three_integers(rows: Any) -> None:
    with pytest.raises(b.nixlMismatchError, match="not an integer|not a list"):
        b.deserialized(json.dumps(["reg", "DRAM_SEG", rows]).encode())
    empty = b.deserialized(json.dumps(["reg", "DRAM_SEG", []]).encode())
    assert isinstance(empty, b.nixlRegDList)
    assert len(empty) == 0


@pytest.mark.parametrize("name", [b"\xff\xfe", b"x" * 5000])
def test_agents_that_say_no_name_are_not_listened_to(name: bytes) -> None:
    here = nixl_agent("here")
    remotes = [_remote.Remote(own, "here", here._mailbox.address) for own in ("good", "bad")]
    with mock.patch.object(_remote.Remote, "_greet"):
        remotes[1].tell(name)
        remotes[1].tell(b"of bad")
    remotes[0].tell(b"of good")
    until = time.monotonic() + 20
    while not here.update_notifs() and time.monotonic() < until:
        time.sleep(0.001)
    assert here.update_notifs() == {"good": [b"of good"]}


# torch's transports.


@pytest.fixture(scope="module")
def buffers() -> Iterator[Any]:
    """Yield DlslimeRemoteBuffer, for a torch with transports or without."""
    found = types.ModuleType("torch.distributed._transport")
    found.Transport = object  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules):
        sys.modules.setdefault("torch.distributed._transport", found)
        from dlslime_backend.integrations.torch_transport import DlslimeRemoteBuffer

        yield DlslimeRemoteBuffer


def _buffer() -> list[Any]:
    text = base64.b64encode(exported()).decode()
    return ["dlslime transport 1", text, 8, 16]


@fuzzed(300, value=st.deferred(lambda: changed(_buffer())))
def test_changed_remote_buffers_are_refused(buffers: Any, value: Any) -> None:
    refusing(ValueError, buffers.deserialize, as_json(value).encode())


@fuzzed(300, content=st.deferred(lambda: damaged(json.dumps(_buffer()).encode())))
def test_damaged_remote_buffers_are_refused(buffers: Any, content: bytes) -> None:
    refusing(ValueError, buffers.deserialize, content)


@pytest.mark.parametrize("place", [[-1, 1], [0, 65], [65, 0], [True, 1], [1.0, 1], [0, 1e999]])
def test_remote_buffers_are_inside_of_their_region(buffers: Any, place: list[Any]) -> None:
    with pytest.raises(ValueError, match="dlslime: no remote buffer: "):
        buffers.deserialize(json.dumps([*_buffer()[:2], *place]).encode())
    whole = buffers.deserialize(json.dumps([*_buffer()[:2], 0, 64]).encode())
    assert whole.serialize() == json.dumps([*_buffer()[:2], 0, 64]).encode()
