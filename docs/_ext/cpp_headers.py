"""Runs Doxygen over the headers of the C++ face, for the directives of breathe.

The headers have plain comments (`//`). A filter makes them Doxygen's (`///` before a declaration,
`///<` behind one), and leaves out what no program calls: destructors, deleted functions, tests.
"""

import shutil
import subprocess
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError

HEADERS = (
    "base/bytes.h",
    "base/clock.h",
    "base/config.h",
    "base/library/build_id.h",
    "base/status.h",
    "engine/endpoint.h",
    "engine/engine.h",
    "engine/hub.h",
    "engine/one_sided/region.h",
    "engine/one_sided/transfer.h",
    "engine/record/flight_recorder.h",
    "engine/record/times_report.h",
    "interface/counters.h",
    "interface/group_options.h",
    "interface/memory.h",
    "interface/operation.h",
    "interface/peer_report.h",
)
FILTER = r"""
s|^\( *\)// |\1/// |
s|\([;,]\) // |\1 ///< |
/= delete;/d
/^  \(virtual \)\?~.*;$/d
/^  ~.*{$/,/^  }$/d
/, for tests\.$/,/^  }$/d
"""
SETTINGS = r"""
PROJECT_NAME         = dlslime
OUTPUT_DIRECTORY     = {folder}
INPUT                = {headers}
INPUT_FILTER         = "sed -f {folder}/filter.sed"
STRIP_FROM_PATH      = {source}
GENERATE_HTML        = NO
GENERATE_LATEX       = NO
GENERATE_XML         = YES
XML_PROGRAMLISTING   = NO
EXTRACT_ALL          = YES
MACRO_EXPANSION      = YES
EXPAND_ONLY_PREDEF   = YES
PREDEFINED           = DLSLIME_API= "GUARDED_BY(x)=" "REQUIRES(x)=" NO_THREAD_SAFETY_ANALYSIS=
AUTOLINK_SUPPORT     = NO
CASE_SENSE_NAMES     = NO
QUIET                = YES
WARN_IF_UNDOCUMENTED = NO
WARN_AS_ERROR        = FAIL_ON_WARNINGS
"""


def _run(app: Sphinx, config: Config) -> None:
    if shutil.which("doxygen") is None:
        raise ExtensionError("doxygen is not found: apt-get install doxygen")
    source = Path(app.srcdir, "csrc")
    folder = Path(app.doctreedir).parent / "doxygen"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "filter.sed").write_text(FILTER)
    headers = " ".join(f"{source}/{name}" for name in HEADERS)
    settings = SETTINGS.format(folder=folder, headers=headers, source=source)
    done = subprocess.run(
        ["doxygen", "-"], input=settings, text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise ExtensionError(f"doxygen has failed:\n{done.stdout}{done.stderr}")
    config.breathe_projects = {"dlslime": str(folder / "xml")}


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx; before breathe reads its settings."""
    app.connect("config-inited", _run, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
