# SPDX-License-Identifier: Apache-2.0
"""headrace.report."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from . import _core
from ._python_facts import python_facts

if TYPE_CHECKING:
    from ._types import Path


def report(*folders: Path) -> dict[str, Any]:
    """What this machine can do for headrace, and what each engine did in each folder.

    In every folder each engine writes random bytes durably, reads them back from the device and compares
    them: ``"verdict"`` is "works", "partly" (right, by a slower route), "failed" or "not tried", with
    ``"why"`` and ``"remedy"``. This takes 8 MiB on the disk and less than a second or so a folder; the file
    has no name, or loses it before it is written, so nothing stays behind. A folder in which nothing can be
    tried has an ``"error"``, and the others go on. Without folders only the machine is looked at.

    The dict is the JSON object that ``headrace report --json`` prints; docs/schema/report.json describes it.
    """
    for folder in folders:
        if not isinstance(folder, (str, bytes, os.PathLike)):
            raise TypeError(f"a folder must be str, bytes or os.PathLike, not {type(folder).__name__}")
    result: dict[str, Any] = json.loads(_core.report_json(folders))
    result["python"] = python_facts()
    return result
