# SPDX-License-Identifier: Apache-2.0
"""One transfer above what Linux moves in one call."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import headrace
import pytest
from support import evict

ONE_CALL = 0x7FFFF000  # read(2): "at most 2,147,479,552 bytes"
PERIOD = bytes(range(251)) * 4177  # a length that no power of two divides


def pieces(size: int) -> Iterator[tuple[slice, bytes]]:
    for start in range(0, size, len(PERIOD)):
        yield slice(start, min(start + len(PERIOD), size)), PERIOD[: size - start]


@pytest.mark.watchdog(300)
@pytest.mark.parametrize("copy", ["auto", "always"])
def test_more_than_two_gibibytes_in_one_request(tmp_path: Path, copy: str) -> None:
    """Mooncake PR 2719, pytorch #717: one transfer above 2 GiB was cut, or ended in zeros."""
    size = ONE_CALL + 4097
    if shutil.disk_usage(tmp_path).free < 2 * size:
        pytest.skip("needs 5 GB of free disk")
    memory = memoryview(headrace.Buffer(size))
    for place, piece in pieces(size):
        memory[place] = piece
    path = tmp_path / "file"
    with headrace.Handle(block_bytes=1 << 30) as h:
        assert h.write(path, memory, copy=copy).result() == size
        assert path.stat().st_size == size
        evict(path)
        for place, _ in pieces(size):
            memory[place.start : place.start + 4096] = bytes(len(memory[place.start : place.start + 4096]))
        assert h.read(path, memory, copy=copy).result() == size
    path.unlink()
    for place, piece in pieces(size):
        assert memory[place].tobytes() == piece
