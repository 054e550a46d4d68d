"""Where the flight record is written: folders and files of this user alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import dlslime_backend
from harness import dlslime_only, run_world

pytestmark = dlslime_only

NOBODY = 65534


def _error_of(folder: str) -> str:
    with pytest.raises(RuntimeError) as failure:
        dlslime_backend.write_flight_record(folder)
    return str(failure.value)


def _refusals(rank: int, size: int, folders: list[str]) -> list[str]:
    return [_error_of(folder) for folder in folders]


def _foreign_folder(path: Path) -> Path:
    """Return a folder of another user."""
    if os.geteuid() != 0:
        return Path("/usr")
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)
    return path


def test_folder_that_may_be_anothers_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    link, file, foreign = tmp_path / "link", tmp_path / "file", _foreign_folder(tmp_path / "theirs")
    link.symlink_to(own)
    file.touch()
    folders = [str(link), str(file), str(foreign)]
    (texts,) = run_world(_refusals, 1, folders)
    for text, folder in zip(texts, folders, strict=True):
        assert f"{folder} is no folder of this user: set DLSLIME_FLIGHT_DIR" in text
    (text,) = run_world(_refusals, 1, [str(tmp_path / "missing" / "below")])[0]
    assert "cannot make the folder" in text
    assert list(own.iterdir()) == []


def _into_links(rank: int, size: int, folder: str) -> str:
    return _error_of(folder)


def test_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    folder, target = tmp_path / "records", tmp_path / "target"
    folder.mkdir()
    target.write_text("untouched")
    (folder / "unfinished_rank_0").symlink_to(target)
    (text,) = run_world(_into_links, 1, str(folder))
    assert "cannot write" in text
    assert target.read_text() == "untouched"


def _by_default(rank: int, size: int) -> tuple[str, str]:
    return dlslime_backend.write_flight_record()


def test_default_folder_is_of_the_user_in_tmpdir(tmp_path: Path) -> None:
    (paths,) = run_world(_by_default, 1, env={"TMPDIR": str(tmp_path)}, fresh=True)
    folder = tmp_path / f"dlslime_flight_{os.geteuid()}"
    assert paths == (str(folder / "unfinished_rank_0"), str(folder / "all_rank_0"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def _without_group(rank: int, size: int, folder: str) -> str:
    with pytest.raises(ValueError, match="init_process_group") as failure:
        dlslime_backend.write_flight_record(folder)
    return str(failure.value)


def test_process_without_a_group_has_no_record(tmp_path: Path) -> None:
    run_world(_without_group, 1, str(tmp_path), init=False, fresh=True)
    assert list(tmp_path.iterdir()) == []
