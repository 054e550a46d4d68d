"""Checks of refusals for smoke tests, where pytest is not installed."""

from __future__ import annotations

import re
from collections.abc import Callable


def refused(kind: type[Exception], text: str, call: Callable[[], object]) -> None:
    """Fail unless the call raises an exception of the kind, with `text` in its message.

    The messages of the exception's causes count as well: torch wraps some of dlslime's exceptions.
    """
    said = None
    try:
        call()
    except kind as error:
        said = "; because: ".join(_chain(error))
    assert said is not None, f"{kind.__name__} is expected: {text}"
    assert re.search(text, said), f"{text!r} is not in {said}"


def _chain(error: BaseException | None) -> list[str]:
    return [] if error is None else [str(error), *_chain(error.__cause__)]


REFUSED = (ValueError, TypeError, OverflowError)
_LONGEST = 300  # characters of a refusal, which is a single line


def refused_in_a_line(call: Callable[[], object], what: object, *secrets: bytes) -> str:
    """Check that the call raises a refusal of a short line without secrets; return the line."""
    try:
        made = call()
    except REFUSED as error:
        text = str(error)
    else:
        raise AssertionError(f"{what}: taken, as {made!r}"[:_LONGEST])
    short = f"{what}: {len(text)} characters in {text.count(chr(10)) + 1} lines: {text[:200]!r}"
    assert len(text) <= _LONGEST, short
    assert "\n" not in text, short
    for secret in secrets:
        for form in (repr(secret)[2:-1], str(list(secret))[1:-1], secret.hex()):
            pieces = [form[i : i + 16] for i in range(40, len(form) - 16, 16)]
            assert not any(piece in text for piece in pieces), f"{what}: a handle is printed"
    return text
