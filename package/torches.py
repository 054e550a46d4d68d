"""The versions of torch that the extension is built for."""

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

MINORS = range(11, 16)  # torch 2.x


class TorchError(Exception):
    """No torch to build for, or an unsupported one; the text says what to do."""


@dataclass(frozen=True)
class Torch:
    """A torch package whose headers and libraries an extension is built with; never imported."""

    folder: Path
    version: str  # "2.13.0+cpu"

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor version: (2, 13)."""
        return minor_of(self.version)

    @property
    def name(self) -> str:
        """Name of the folder in the package that has the extension for this torch."""
        return "torch_{}_{}".format(*self.minor)

    @property
    def include_folders(self) -> list[Path]:
        """Folders of torch's headers."""
        include = self.folder / "include"
        return [include, include / "torch" / "csrc" / "api" / "include"]


def minor_of(version: str) -> tuple[int, int]:
    """Return major and minor version as integers: (2, 13) for "2.13.0+cpu"."""
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def torch_in(folder: Path) -> Torch:
    """Return the torch whose package is `folder`.

    Raises:
        TorchError: there is no torch in the folder, or the version is not supported.
    """
    try:
        text = (folder / "version.py").read_text()
    except OSError as error:
        raise TorchError(f"{folder} is not the folder of a torch package: {error}") from error
    found = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    if found is None:
        raise TorchError(f"{folder / 'version.py'} does not say which version of torch this is")
    torch = Torch(folder.resolve(), found[1])
    if torch.minor[0] != 2 or torch.minor[1] not in MINORS:
        raise TorchError(
            f"cannot build for torch {torch.version}: supported are 2.{MINORS[0]} to "
            f"2.{MINORS[-1]}. Install one of these first."
        )
    return torch


def torches() -> list[Torch]:
    """Return the torches to build for, oldest first.

    The folders in DLSLIME_BUILD_TORCH, separated by colons, or else the torch installed for this
    Python.

    Raises:
        TorchError: no torch was found, or one is not supported, or two have the same minor version.
    """
    named = os.environ.get("DLSLIME_BUILD_TORCH")
    if named:
        found = sorted((torch_in(Path(name)) for name in named.split(":")), key=lambda t: t.minor)
        for one, next_one in zip(found, found[1:], strict=False):
            if one.minor == next_one.minor:
                raise TorchError(
                    f"DLSLIME_BUILD_TORCH names two torches of one minor version: "
                    f"{one.folder} ({one.version}) and {next_one.folder} ({next_one.version})"
                )
        return found
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise TorchError(
            "torch is not installed for the Python of this build. Install torch 2.11 to 2.15 "
            "first, then run: pip install --no-build-isolation . (without that option pip builds "
            "in an empty environment)"
        )
    return [torch_in(Path(spec.origin).parent)]
