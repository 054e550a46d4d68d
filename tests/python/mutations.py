"""Input made by Hypothesis for decoders: JSON values of all kinds, and changed documents.

With DLSLIME_FUZZ_EXAMPLES=1000000 each test of `fuzzed` takes as many examples (with `--timeout 0`
pytest waits for the end). With DLSLIME_TEST_RANDOM=1 the examples differ each time.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates, too
_NUMBERS = st.one_of(
    st.integers(),
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**32, 2**63, 2**64, 10**40, -(2**63)]),
    st.sampled_from([-1, 1]).map(lambda sign: sign * 10**5000),  # Python prints no such number
    st.floats(),
    st.sampled_from([1e999, -1e999, float("nan"), 1e308, -0.0]),
)
_LEAVES = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS)


def nested(depth: int, what: Any = 0) -> Any:
    """Return a list in a list, and so on."""
    for _ in range(depth):
        what = [what]
    return what


VALUES: st.SearchStrategy[Any] = st.one_of(
    _LEAVES,
    st.recursive(
        _LEAVES, lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner), max_leaves=20
    ),
    st.integers(1, 3000).map(nested),
    st.integers(1, 5000).map(lambda length: [0] * length),
    st.integers(1, 100_000).map(lambda length: "x" * length),
)


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """Draw a JSON document with up to three values replaced, removed, moved or doubled."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        document = _changed_once(draw, document)
    return document


def _changed_once(draw: st.DrawFn, document: Any) -> Any:
    if not isinstance(document, (dict, list)) or not document or draw(st.integers(0, 9)) == 0:
        return draw(VALUES)
    keys = list(document) if isinstance(document, dict) else range(len(document))
    key = draw(st.sampled_from(keys))
    action = draw(st.sampled_from(["deeper", "deeper", "replace", "remove", "move", "add"]))
    if action == "deeper":
        document[key] = _changed_once(draw, document[key])
    elif action == "replace":
        document[key] = draw(VALUES)
    elif action == "remove":
        del document[key]
    elif action == "move":
        other = draw(st.sampled_from(keys))
        document[key], document[other] = document[other], document[key]
    elif isinstance(document, dict):
        document[draw(_TEXTS)] = document[key]
    else:
        document.insert(key, document[key])
    return document


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw bytes with up to three places changed, cut out or put in; or entirely new bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(content)))
        end = begin + draw(st.integers(0, 8))
        content = content[:begin] + draw(st.binary(max_size=8)) + content[end:]
    return content


# Pieces of JSON in any order, with the characters that parsers and the scan before parsing look at.
_PIECES = st.sampled_from(
    ["[", "]", "{", "}", ",", ":", '"', "\\", '\\"', "\\\\", "\\u005b", '"a"', "0", "-", "1e999"]
    + ["NaN", "Infinity", "null", "true", " ", "\0", "\ud800", "é", "[" * 300, "9" * 5000, "1.5"]
)
TEXTS: st.SearchStrategy[str] = st.lists(_PIECES, max_size=30).map("".join) | VALUES.map(
    lambda value: as_json(value)
)


def as_json(value: Any) -> str:
    """Return the JSON text of a value of any depth and size."""
    try:
        return json.dumps(value)
    except (RecursionError, ValueError):  # nested, or of thousands of digits
        depth = 0
        while isinstance(value, list) and value:
            value, depth = value[0], depth + 1
        return "[" * max(depth, 1) + "9" * 5000 + "]" * max(depth, 1)


def fuzzed(examples: int, **strategies: st.SearchStrategy[Any]) -> Callable[[Any], Any]:
    """Run a function with drawn arguments `examples` times, or DLSLIME_FUZZ_EXAMPLES times."""
    limits = settings(
        max_examples=int(os.environ.get("DLSLIME_FUZZ_EXAMPLES", examples)),
        deadline=timedelta(seconds=20),  # no decoder takes long
        derandomize="DLSLIME_TEST_RANDOM" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda function: limits(given(**strategies)(function))
