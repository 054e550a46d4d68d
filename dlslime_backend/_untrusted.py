"""Decoding of input from other processes and from requests of clients; no input is trusted.

Each function returns the decoded value or raises ValueError, in time and memory linear in the size
of the input. The error's text has the name of the field (`what`), the value (cut and escaped) and
the allowed values; the caller adds the name of the document.
"""

from __future__ import annotations

import base64
import json
import math
import re
import reprlib
import zlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

U64 = 2**64 - 1
_MOST_SHOWN = 120  # characters of a value in an error's text
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
# Numbers of dlslime have at most 20 digits. Python's limit of 4,300 digits can be lifted, so the
# parser is not left to enforce a limit.
_LONG_NUMBER = re.compile(rb"[0-9]{41}")


class _Repr(reprlib.Repr):
    """`repr` with a bounded result, for values of any depth and size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxdict = 3, 4, 4
        self.maxstring = self.maxother = 40

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"an integer of {x.bit_length()} bits"

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x) if len(x) <= self.maxother else f"{bytes(x[: self.maxother])!r}..."

    def repr_bytearray(self, x: bytearray, level: int) -> str:
        return self.repr_bytes(bytes(x[: self.maxother + 1]), level)


_repr = _Repr().repr


def shown(value: object) -> str:
    """Return a value for an error's text: its repr, cut and escaped."""
    return printable(_repr(value), _MOST_SHOWN)


def kind(value: object) -> str:
    """Return the type of a value, for error texts that must not show the content."""
    return "None" if value is None else f"an object of type {type(value).__name__}"


def printable(text: str, most: int = 500) -> str:
    """Return a text for a line of a log: cut to `most` characters, unprintable ones escaped."""
    cut = text if len(text) <= most else text[:most] + "..."
    if cut.isprintable():
        return cut
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut
    )


def parse_json(
    data: bytes | bytearray | memoryview | str,
    *,
    most_bytes: int,
    most_values: int = 1 << 20,
    most_depth: int = 8,
) -> Any:
    """Return the value of a JSON text.

    Numbers must be finite and have at most 40 digits. The depth is checked before the parser runs,
    because the parser recurses.

    Args:
        data: UTF-8 if bytes.
        most_bytes: limit of the text.
        most_values: limit of the number of values.
        most_depth: limit of the nesting.
    """
    if not isinstance(data, (bytes, bytearray, memoryview, str)):
        raise ValueError(f"JSON is bytes, not {kind(data)}")
    raw = data.encode() if isinstance(data, str) else bytes(data)
    if len(raw) > most_bytes:
        raise ValueError(f"{len(raw)} bytes of JSON; at most {most_bytes} are possible")
    # Decoded before parsing: json.loads would also accept UTF-16, with other bytes for brackets.
    text = raw.decode()
    _require_bounded(raw, most_values, most_depth)
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _require_bounded(raw: bytes, most_values: int, most_depth: int) -> None:
    # Backslashes occur in strings only. Without escapes, every second quote ends a string.
    rest = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A value is at most two strings (key and text), and a comma or bracket lies between two values.
    if rest.count(b'"') > 4 * most_values:
        raise ValueError(f"JSON of more than {most_values} values")
    outside = b"".join(rest.split(b'"')[::2])
    brackets = outside.translate(None, delete=_NOT_BRACKETS)
    if len(brackets) + outside.count(b",") > most_values:
        raise ValueError(f"JSON of more than {most_values} values")
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        if depth > most_depth:
            raise ValueError(f"JSON that is nested more than {most_depth} deep")
    found = _LONG_NUMBER.search(outside)
    if found is not None:
        raise ValueError(f"a number in JSON of more than 40 digits: {shown(found[0].decode())}...")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {shown(text)} in JSON is not finite")
    return number


def decode_base64(value: object, what: str, most: int) -> bytes:
    """Return the bytes of a base64 text of at most `most` bytes; error texts hide the content."""
    # The content may give access to memory, so error texts must not show any of it.
    if not isinstance(value, str):
        raise ValueError(f"{what} is {kind(value)}, not a base64 text")
    if len(value) > -(-most // 3) * 4:
        raise ValueError(f"{what} is of {len(value)} characters: more than {most} bytes in base64")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise ValueError(f"{what} ({len(value)} characters) is no base64: {error}") from error


def decompress(data: bytes, what: str, most: int) -> bytes:
    """Return the whole uncompressed content of zlib data, of at most `most` bytes."""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(data, most)
    except zlib.error as error:
        raise ValueError(f"{what} ({len(data)} bytes) is not of zlib: {error}") from error
    if not stream.eof or stream.unused_data:
        raise ValueError(
            f"{what} ({len(data)} bytes) is cut, goes on behind its end or has more than {most} "
            "bytes uncompressed"
        )
    return content


def integer(value: object, what: str, least: int, most: int) -> int:
    """Return an integer from `least` to `most`; True and 1.0 are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{what} is {shown(value)}, not an integer from {least} to {most}")
    return value


def choice(value: object, what: str, known: Sequence[str]) -> str:
    """Return a text that is in `known`."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{what} is {shown(value)}, not {' or '.join(map(repr, known))}")
    return value


def flag(value: object, what: str) -> bool:
    """Return a bool; 1 and None are refused."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} is {shown(value)}, neither true nor false")
    return value


def text(value: object, what: str, most: int) -> str:
    """Return a text of at most `most` characters that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {shown(value)}, not a text")
    if len(value) > most:
        raise ValueError(f"{what} has {len(value)} characters; at most {most} are possible")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is {shown(value)}, which UTF-8 can't encode") from None
    return value


def items(value: object, what: str, most: int, least: int = 0) -> list[Any]:
    """Return a list of `least` to `most` items; a tuple is accepted, too."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{what} is {shown(value)}, not a list")
    if not least <= len(value) <= most:
        raise ValueError(f"{what} has {len(value)} items, not from {least} to {most}")
    return list(value)


def fields(value: object, what: str, names: Iterable[str] = ()) -> dict[Any, Any]:
    """Return a dict that has all keys of `names`; further keys are allowed."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {shown(value)}, not an object")
    missing = [name for name in names if name not in value]
    if missing:
        there = shown(list(islice(value, 5)))
        raise ValueError(
            f"{what} has no {', '.join(missing)}; {len(value)} keys are there: {there}"
        )
    return value
