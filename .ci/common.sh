# shellcheck shell=bash
# What the scripts of this folder share. Source it; it moves to the project's root.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
ROOT=$PWD
# shellcheck disable=SC2034
VENV=$ROOT/.venv
# shellcheck disable=SC2034
TORCH=2.13.0 # of all tests but the wheel's and the GPU's
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# Compiled files are found again by a clone in another folder.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1

# For what may take all the time that nothing else wants, and none besides.
idle=(nice -n 19)
# shellcheck disable=SC2034
! command -v chrt >/dev/null || idle=(chrt --idle 0)

say() {
  printf '== %s\n' "$*"
}

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# stamped FILE HASH: whether FILE holds HASH, the mark that a step was done for these inputs.
stamped() {
  [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]
}

# hash_of TEXT... : one hash over the texts given and over the content of the files named on standard input.
hash_of() {
  { printf '%s\n' "$@"; sort -u | xargs -r -d '\n' sha256sum; } | sha256sum | cut -d ' ' -f 1
}

# as_root COMMAND...: by sudo where needed; never asks for a password.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo -n env DEBIAN_FRONTEND=noninteractive "$@"
  else
    die "root is needed once, to run: $*"
  fi
}

# apt_install PACKAGE...: installs Debian packages that are missing; does nothing without arguments. None is upgraded: a
# build may be using its headers.
apt_install() {
  [ $# -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "apt-get is not found; install what corresponds to: $*"
  say "apt-get install $*"
  export DEBIAN_FRONTEND=noninteractive
  as_root apt-get update -qq
  as_root apt-get install -y -qq --no-install-recommends --no-upgrade "$@" >/dev/null
}

# find_python: prints a Python that torch has wheels for ($PYTHON, if set).
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

# make_venv FOLDER: creates a virtual environment, again where it doesn't work (any more).
make_venv() {
  local folder=$1 python
  if "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    return 0
  fi
  python=$(find_python) || die "no Python 3.11 to 3.14 is found; set PYTHON to one"
  say "virtual environment ${folder##*/} ($("$python" --version))"
  "$python" -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv
  "$python" -m venv --clear "$folder"
}

# pip_install PYTHON ARGUMENTS...: pip without its chatter, its output shown when it fails.
pip_install() {
  local python=$1 log
  shift
  log=$(mktemp)
  if ! "$python" -m pip install --progress-bar off "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

# install_torch PYTHON VERSION: the CPU build where an index or folder that pip knows has it, else the default one (larger,
# does the same here).
install_torch() {
  pip_install "$1" "torch==$2+cpu" 2>/dev/null || pip_install "$1" "torch==$2"
}

# need_compiler PYTHON: a C++20 compiler and Python's headers, by apt where missing.
need_compiler() {
  local missing=() headers
  ${CXX:-c++} --version >/dev/null 2>&1 || missing+=(g++)
  headers=$("$1" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
  [ -f "$headers/Python.h" ] || missing+=("$("$1" -c 'import sys; print("python3.%d-dev" % sys.version_info[1])')")
  apt_install "${missing[@]}"
}

# need_libfuzzer: clang with libFuzzer, by apt where it is missing.
need_libfuzzer() {
  local program='extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
  command -v clang++ >/dev/null || apt_install clang
  # Debian has libFuzzer and the sanitizers in a package of their own, by clang's version.
  clang++ -fsanitize=fuzzer,address -x c++ -o /dev/null - <<<"$program" 2>/dev/null ||
    apt_install "libclang-rt-$(clang++ -dumpversion | cut -d . -f 1)-dev"
}
