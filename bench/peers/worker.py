# SPDX-License-Identifier: Apache-2.0
"""worker.py SPEC: the process of one contender. Takes JSON objects, one a line, and answers each with one.

SPEC is a JSON object: kind, options, uid (null: as started), locked_bytes (null: as started). Requests:
  {"do": "prepare", "size", "source"}                       -> {"facts"}, or {"skip": why}
  {"do": "ready", "operation", "path", "size", "options"}   -> {}
  {"do": "run", "operation", "path", "size", "options"}     -> an Outcome
An exception becomes {"error": text}. Ends with its input. What libraries print goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

from contender import Contender, Skip, Turn
from system import become_ordinary, end_with_parent

KINDS = {
    "headrace": ("headrace_contender", "Headrace"),
    "headrace_handle": ("headrace_contender", "HeadraceHandle"),
    "aio_handle": ("peer_contenders", "AioHandle"),
    "plain_python": ("peer_contenders", "PlainPython"),
    "fio": ("program_contenders", "Fio"),
    "random_read": ("program_contenders", "RandomRead"),
    "save_headrace": ("checkpoint_contender", "HeadraceSaver"),
    "load_headrace": ("checkpoint_contender", "HeadraceLoader"),
    "load_bare": ("checkpoint_contender", "BareLoop"),
    "slice_headrace": ("checkpoint_contender", "HeadraceSlicer"),
    "save_torch": ("checkpoint_peers", "TorchSaver"),
    "load_torch": ("checkpoint_peers", "TorchLoader"),
    "slice_torch": ("checkpoint_peers", "TorchSlicer"),
    "save_safetensors": ("checkpoint_peers", "SafetensorsSaver"),
    "load_safetensors": ("checkpoint_peers", "SafetensorsLoader"),
    "slice_safetensors": ("checkpoint_peers", "SafetensorsSlicer"),
    "save_fastpersist": ("checkpoint_peers", "FastPersistSaver"),
    "save_dcp": ("checkpoint_peers", "DcpSaver"),
    "save_tensorizer": ("checkpoint_peers", "TensorizerSaver"),
    "load_tensorizer": ("checkpoint_peers", "TensorizerLoader"),
    "load_runai": ("checkpoint_peers", "RunaiLoader"),
    "load_fastsafetensors": ("checkpoint_peers", "FastsafetensorsLoader"),
    "tool": ("tool_contenders", "Tool"),
    "tool_torch": ("tool_contenders", "TorchTool"),
}


def main() -> None:
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    spec = json.loads(sys.argv[1])
    contender: Contender | None = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if request["do"] == "prepare":
                contender = make(spec)
                answer: dict[str, Any] = {"facts": contender.prepare(request["size"], request["source"])}
            elif contender is None:
                raise RuntimeError(f"{request['do']} was asked for before prepare")
            else:
                turn = Turn(request["operation"], request["path"], request["size"], request["options"])
                if request["do"] == "ready":
                    contender.ready(turn)
                    answer = {}
                else:
                    answer = contender.run(turn).as_message()
        except Skip as why:
            answer = {"skip": str(why)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def make(spec: dict[str, Any]) -> Contender:
    """Loads the contender, whose files may be out of an ordinary user's reach, and then drops privileges."""
    module, name = KINDS[spec["kind"]]
    contender: Contender = getattr(importlib.import_module(module), name)(spec["options"])
    contender.load()
    if spec["locked_bytes"] is not None:
        become_ordinary(spec["uid"], spec["locked_bytes"])
    return contender


if __name__ == "__main__":
    main()
