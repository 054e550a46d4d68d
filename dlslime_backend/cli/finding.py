"""What a check of the doctor has found."""

from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much a finding matters.

    `PROBLEM`: something does not work, or is slow, and should be mended. `NOTE`: something is
    limited, which may be as wanted. `OK`: a fact.
    """

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        check: what was looked at, such as "memlock" or "mlx5_0:1".
        text: what was found, with numbers.
        level: how much the finding matters.
        remedy: what to do; empty if nothing is to be done.
    """

    check: str
    text: str
    level: Level = Level.OK
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding for --json."""
        return {key: str(value) for key, value in asdict(self).items()}


def problem(check: str, text: str, remedy: str) -> Finding:
    """Return a finding that should be mended."""
    return Finding(check, text, Level.PROBLEM, remedy)


def note(check: str, text: str, remedy: str = "") -> Finding:
    """Return a finding about a limit."""
    return Finding(check, text, Level.NOTE, remedy)
