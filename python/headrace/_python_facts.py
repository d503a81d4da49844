# SPDX-License-Identifier: Apache-2.0
"""Which Python this is, and which packages it finds that headrace works with. None of them is imported.

The program `headrace` carries this file and runs it as it stands, in a Python that may not have headrace.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys

PACKAGES = ("torch", "numpy", "safetensors", "deepspeed", "headrace")


def torch_cuda() -> "str | None":
    """The CUDA version that torch was built for, as its torch/version.py says."""
    try:
        spec = importlib.util.find_spec("torch")
        if spec is None or not spec.origin:
            return None
        with open(os.path.join(os.path.dirname(spec.origin), "version.py"), encoding="utf-8") as file:
            text = file.read(65536)
    except (OSError, ValueError, ImportError):
        return None
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\w.]{1,32})['\"]", text, re.MULTILINE)
    return match[1] if match else None


def package_facts(name: str) -> "dict[str, object]":
    """Found or not, and its version as pip knows it."""
    try:
        version = importlib.metadata.version(name)
    except Exception:  # broken metadata is no reason to report nothing
        version = None
    facts: dict[str, object] = {"found": version is not None, "version": version}
    if name == "torch":
        facts["cuda"] = torch_cuda() if version is not None else None
    return facts


def python_facts() -> "dict[str, object]":
    """The part of the report that only Python can tell."""
    return {
        "found": True,
        "version": platform.python_version(),
        "program": sys.executable or None,
        "packages": {name: package_facts(name) for name in PACKAGES},
    }


if __name__ == "__main__":
    print(json.dumps(python_facts()))
