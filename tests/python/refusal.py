"""What a smoke test expects to be refused, where pytest is not installed."""

from __future__ import annotations

import re
from collections.abc import Callable


def refused(kind: type[Exception], text: str, call: Callable[[], object]) -> None:
    """Fail unless the call raises this kind of exception, and `text` is found in what it says.

    What has caused it counts as well: torch wraps some of our exceptions in its own.
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
