"""Modules that speak the Python APIs of other transfer libraries, on top of dlslime's own.

Programs that can change an import write `import dlslime_backend.compat.dlslime as dlslime`. For
those that can't, the variable DLSLIME_PROVIDE=dlslime in the environment of all their processes
makes `import dlslime` find it, also before `import torch`; so does `provide("dlslime")` before the
import. Where the library itself is installed it always goes first, and is never hidden.
"""

from _dlslime_provide import provide, provide_by_environment

__all__ = ["provide", "provide_by_environment"]
