"""The lock check (.ci/check_locks.py) passes here, and finds functions that do not say REQUIRES."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paths import ROOT

SCRIPT = ROOT / ".ci" / "check_locks.py"
HEADER = """// Things. Under the engine's
// lock.
class Things final : public Face {
 public:
  explicit Things(int size) : size_(size), all_{size} {}
  static int most(int size);
  int size() const {
    return size_;
  }
  // Wakes a thread. Any thread.
  void wake();
  template <typename Visit>
  void visit(const Visit& visit) REQUIRES(kEngineLock) {
    visit(all_);
  }
  FUNCTION

 private:
  const int size_;
  std::function<void(int)> told_ = [](int size) { most(size); };
  std::vector<int> all_ GUARDED_BY(kEngineLock);
};
"""


def check(root: Path, function: str, text: str = HEADER) -> tuple[int, str]:
    folder = root / "csrc" / "engine"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "things.h").write_text(text.replace("FUNCTION", function))
    return run(root)


def run(root: Path) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPT), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.strip()


def test_project_has_no_problem() -> None:
    assert run(ROOT) == (0, "")


@pytest.mark.parametrize(
    "function",
    [
        "void add(int one);",
        "void add(int one) {\n    all_.push_back(one);\n  }",
        "virtual bool add(int one) = 0;",
        "bool add(int one) override;",
        "std::map<int, int> add(std::function<void(int)> told);",
        "[[nodiscard]] Status add(const Thing& one,\n      int more);",
        "template <typename T>\n  void add(const T& one);",
    ],
)
def test_functions_that_change_an_object_say_so(tmp_path: Path, function: str) -> None:
    status, line = check(tmp_path, function)
    assert status == 1
    assert line.startswith("csrc/engine/things.h: Things: ")
    assert "add(" in line
    assert line.count("\n") == 0


def test_function_that_says_so_is_taken(tmp_path: Path) -> None:
    assert check(tmp_path, "bool add(int one) REQUIRES(kEngineLock) override;") == (0, "")


def test_class_of_other_threads_is_not_checked(tmp_path: Path) -> None:
    text = HEADER.replace("Under the engine's\n// lock.", "Any thread.")
    assert check(tmp_path, "void add(int one);", text) == (0, "")
