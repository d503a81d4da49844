# SPDX-License-Identifier: Apache-2.0
"""The folder a run works in, its source file, and the huge pages that fio needs; all gone when the run ends.

Everything lies in one new folder with a name of its own, so that no file of anybody else is ever touched.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

import stamps
from guard import NR_HUGEPAGES
from system import memory_info, sync_folder

HUGEPAGES_FREE = 80  # 160 MiB in pages of 2 MiB: fio's 128 MiB and what it rounds up
SPACE_SPARE = 1 << 30


class CannotRunError(RuntimeError):
    """The machine lacks what a run needs; the message says what."""


class Scratch:
    """A scratch folder under `folder` with `source_bytes` of stamped random data in `source`.

    There is room for `other_bytes` beside it; `smaller` is the option that would make both less.
    Only one run at a time: two would measure each other. On leaving, and also when this process is killed, a
    guard process removes the folder and restores vm.nr_hugepages.
    """

    def __init__(self, folder: str, source_bytes: int, other_bytes: int, smaller: str) -> None:
        self._folder = os.path.abspath(folder)
        self._source_bytes = source_bytes
        self._other_bytes = other_bytes
        self._smaller = smaller
        self._lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._guard: subprocess.Popen[bytes] | None = None
        self.path = ""
        self.source = ""
        self.huge_pages = "not asked for"

    def __enter__(self) -> Scratch:
        try:
            self._lock.bind("\0headrace-bench")
        except OSError as error:
            raise CannotRunError(
                "another benchmark of headrace is running; two would measure each other"
            ) from error
        self._check_space()
        self.path = tempfile.mkdtemp(prefix="headrace-bench-", dir=self._folder)
        try:
            os.chmod(self.path, 0o755)  # ordinary users read the source
            before = NR_HUGEPAGES.read_text().strip() if os.geteuid() == 0 and NR_HUGEPAGES.exists() else "-"
            self._guard = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("guard.py")), self.path, before],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            self.huge_pages = take_huge_pages()
            self.source = os.path.join(self.path, "source.bin")
            stamps.write_file(self.source, self._source_bytes)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait()
        elif self.path:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def folder_for(self, name: str, owner: int) -> str:
        """A folder inside the scratch folder in which the user `owner` may make files."""
        path = os.path.join(self.path, name)
        if not os.path.isdir(path):
            os.mkdir(path, 0o755)
            if owner != os.geteuid():
                os.chown(path, owner, -1)
            sync_folder(self.path)
        return path

    def file(self, name: str) -> str:
        """The path of a file of that name in the scratch folder; without a name, of the source."""
        return os.path.join(self.path, name) if name else self.source

    def _check_space(self) -> None:
        if not os.path.isdir(self._folder):
            raise CannotRunError(f"{self._folder} is not a folder")
        free = shutil.disk_usage(self._folder).free
        need = self._source_bytes + self._other_bytes + SPACE_SPARE
        if free < need:
            raise CannotRunError(
                f"{self._folder} has {free / 1e9:.1f} GB free of {need / 1e9:.1f} needed: "
                f"use a smaller {self._smaller}"
            )


def take_huge_pages() -> str:
    """Makes sure of enough free huge pages. Returns "" when there are, else why not."""
    if memory_info().get("HugePages_Free", 0) >= HUGEPAGES_FREE:
        return ""
    if os.geteuid() != 0:
        return f"no {HUGEPAGES_FREE} free huge pages, and only root may reserve some (vm.nr_hugepages)"
    Path("/proc/sys/vm/compact_memory").write_text("1")
    wanted = int(NR_HUGEPAGES.read_text()) - memory_info()["HugePages_Free"] + HUGEPAGES_FREE
    NR_HUGEPAGES.write_text(str(wanted))
    free = memory_info()["HugePages_Free"]
    return "" if free >= HUGEPAGES_FREE else f"the kernel found only {free} of {HUGEPAGES_FREE} huge pages"
