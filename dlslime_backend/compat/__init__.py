"""Modules with the Python APIs of other transfer libraries, implemented by dlslime.

Programs under the user's control write `import dlslime_backend.compat.dlslime as dlslime`. For
unchanged programs, DLSLIME_PROVIDE=dlslime in the environment of all processes makes `import
dlslime` find the module, also before `import torch`; a call of `provide("dlslime")` before the
import has the effect in one process. An installed original library always takes precedence, and is
never hidden.
"""

from _dlslime_provide import provide, provide_by_environment

__all__ = ["provide", "provide_by_environment"]
