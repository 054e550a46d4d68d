"""Paths of the programs, and the folders from which the programs import each other."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FOLDERS = [str(FOLDER), *(str(folder) for folder in sorted(FOLDER.glob("[a-z]*/")))]


def path_of(program: str) -> str:
    """Return the file of a program."""
    (path,) = FOLDER.glob(f"*/{program}.py")
    return str(path)
