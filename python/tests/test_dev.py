# SPDX-License-Identifier: Apache-2.0
"""./dev of the tree that these tests belong to."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["demo", "--help"], "--rounds"),
        (["demo", "--size", "4", "-h"], "--rounds"),
        (["bench", "--help"], "micro"),
        (["bench", "micro", "--help"], "micro"),
        (["help"], "Usage"),
    ],
)
def test_help_is_printed_without_building_anything(tmp_path: Path, arguments: list[str], word: str) -> None:
    for name in ("dev", "bench/run.py", "python/headrace/demo/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    done = subprocess.run(
        [tmp_path / "dev", *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert word in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench", "dev", "python"]
