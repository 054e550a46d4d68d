"""`python -m dlslime_backend doctor`: what works on the machine, and why the rest does not."""

import argparse
import json
import platform
import sys
from pathlib import Path

import torch

from dlslime_backend import __version__
from dlslime_backend._build import TORCH_VERSION


def _doctor() -> dict[str, object]:
    report: dict[str, object] = {
        "dlslime": __version__,
        "built for torch": TORCH_VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    try:
        from dlslime_backend._load import extension

        routes = dict(extension().machine_report())
    except ImportError as error:
        return report | {"extension": str(error)}
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    report["ptrace_scope"] = scope.read_text().strip() if scope.exists() else "no Yama"
    if not torch.distributed.is_gloo_available():
        routes["gloo"] = "torch was built without Gloo"
    return report | {"extension": "loads", "routes": routes}


def main() -> int:
    """Print the doctor's report; return 1 if the extension module can't be loaded, else 0."""
    parser = argparse.ArgumentParser(prog="python -m dlslime_backend")
    parser.add_argument("command", choices=["doctor"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = _doctor()
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        for key, value in report.items():
            lines = value.items() if isinstance(value, dict) else [("", value)]
            for name, text in lines:
                print(f"{key}{' ' + name if name else ''}: {text}")
    return 0 if report["extension"] == "loads" else 1


if __name__ == "__main__":
    sys.exit(main())
