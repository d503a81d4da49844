# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""Files beyond 4 GiB and of more than 65,535 records, by every reader there is."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import headrace
from support import need_tool


@pytest.mark.slow
@pytest.mark.watchdog(300)
def test_a_file_beyond_4_gib_is_read_by_everybody(tmp_path: Path) -> None:
    """coreweave/tensorizer #198; pytorch PR #40757: sizes and places of more than 32 bits."""
    if shutil.disk_usage(tmp_path).free < 12 << 30:
        pytest.skip("needs 12 GiB of disk")
    large = torch.zeros(2**32 + 1, dtype=torch.uint8)
    for place in (0, 2**31 - 1, 2**31, 2**32 - 1, 2**32):
        large[place] = 1 + place % 251
    obj = {"first": torch.arange(5), "large": large, "behind": torch.arange(300_000)}
    headrace.save(obj, tmp_path / "a.pt")
    for loaded in (torch.load(tmp_path / "a.pt", mmap=True), headrace.load(tmp_path / "a.pt", mmap=True)):
        assert torch.equal(loaded["large"], large)
        assert torch.equal(loaded["behind"], obj["behind"])
    del loaded
    loaded = headrace.load(tmp_path / "a.pt", verify="require")
    assert torch.equal(loaded["large"], large)
    del loaded
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        assert archive.testzip() is None
    need_tool("unzip")
    subprocess.run(["unzip", "-tqq", tmp_path / "a.pt"], check=True)
    (tmp_path / "a.pt").unlink()
    for container in ("torch-legacy", "safetensors"):
        path = tmp_path / ("b.pt" if container == "torch-legacy" else "b.safetensors")
        headrace.save(obj, path, format=container)  # type: ignore[arg-type]
        loaded = torch.load(path) if container == "torch-legacy" else headrace.load(path, mmap=True)
        assert torch.equal(loaded["large"], large)
        del loaded
        loaded = headrace.load(path)
        assert torch.equal(loaded["large"], large)
        assert torch.equal(loaded["behind"], obj["behind"])
        del loaded
        path.unlink()


@pytest.mark.slow
@pytest.mark.watchdog(300)
def test_seventy_thousand_records_are_read_by_everybody(tmp_path: Path) -> None:
    """More than 65,535 entries need the 64-bit fields of a zip file's directory."""
    path = tmp_path / "a.pt"
    obj = {f"w{i}": torch.full((i % 7,), i, dtype=torch.int32) for i in range(70_000)}
    headrace.save(obj, path)
    for loaded in (headrace.load(path, verify="require"), torch.load(path), torch.load(path, mmap=True)):
        assert loaded.keys() == obj.keys()
        assert all(torch.equal(loaded[name], obj[name]) for name in obj)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) > 70_000
        assert archive.testzip() is None
    need_tool("unzip")
    subprocess.run(["unzip", "-tqq", path], check=True)
    torch.save(obj, tmp_path / "torch.pt")
    loaded = headrace.load(tmp_path / "torch.pt", verify="require")
    assert all(torch.equal(loaded[name], obj[name]) for name in obj)
