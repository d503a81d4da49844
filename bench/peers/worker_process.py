# SPDX-License-Identifier: Apache-2.0
"""The other end of worker.py: starts a contender's process, asks it, and ends it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from contender import Skip

ANSWER_SECONDS_MAX = 3600.0  # DeepSpeed compiles its extension in the first one
END_SECONDS_MAX = 60.0


class ContenderError(RuntimeError):
    """The contender answered with an error, or its process ended or hung."""


class WorkerProcess:
    """One contender. Not shared between threads."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._words = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in close()
        environment = {name: text for name, text in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env=environment,
            bufsize=0,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises Skip or ContenderError when that is the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            line = self._answer_line()
        except BrokenPipeError as error:
            raise ContenderError(f"its process is gone: {self._last_words()}") from error
        answer: dict[str, Any] = json.loads(line)
        if "skip" in answer:
            raise Skip(answer["skip"])
        if "error" in answer:
            raise ContenderError(answer["error"])
        return answer

    @property
    def alive(self) -> bool:
        """False once its process has ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """Lets it end by itself, and kills it when it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()
        self._words.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer_line(self) -> bytes:
        assert self._process.stdout is not None
        deadline, line = time.monotonic() + ANSWER_SECONDS_MAX, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                raise ContenderError(f"no answer in {ANSWER_SECONDS_MAX:.0f} s: {self._last_words()}")
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                self._process.wait()
                raise ContenderError(
                    f"its process ended with {self._process.returncode}: {self._last_words()}"
                )
            line += piece
        return line

    def _last_words(self) -> str:
        self._words.seek(0)
        return self._words.read()[-600:].strip().replace("\n", " | ")
