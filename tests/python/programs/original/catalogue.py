"""Where each program is, and the folders from which they import each other."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FOLDERS = [str(FOLDER), *(str(folder) for folder in sorted(FOLDER.glob("[a-z]*/")))]


def path_of(program: str) -> str:
    """The file of the program of this name."""
    (path,) = FOLDER.glob(f"*/{program}.py")
    return str(path)
