# SPDX-License-Identifier: Apache-2.0
"""What the tests of file objects and FastPersist's writers share: both kinds, and a file to write over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace.torch
import pytest
from headrace.fastpersist import FastFileWriter, FastFileWriterConfig

MIB = 1 << 20
OLD = b"the old checkpoint"


def fast(path: Path, pinned: Any = None) -> FastFileWriter:
    return FastFileWriter(path, FastFileWriterConfig(None, pinned))


MAKERS = [headrace.torch.writer, fast]


@pytest.fixture(name="path")
def path_of_an_old_file(tmp_path: Path) -> Path:
    """A file that stands there already."""
    (tmp_path / "a").write_bytes(OLD)
    return tmp_path / "a"
