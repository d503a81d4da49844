# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""The names, links and permission bits of saved checkpoints."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import headrace
from checkpoint_support import assert_same, only

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:.*[Qq]uantiz.*deprecated"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]


NAMES = {
    "letters of everywhere": "модель 模型 🚀.pt",
    "spaces and quotes": " a 'b' \"c\" \\.pt",
    "a line break": "a\nb.pt",
    "a dot first": ".pt.pt",
    "no suffix before it": "archive.pt",
    "255 bytes": "n" * 252 + ".pt",
    "255 bytes of other letters": "é" * 126 + ".pt",
}


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_file_works(tmp_path: Path, name: str) -> None:
    """pytorch #98918, #103949, #116103."""
    obj = {"a": torch.arange(20_000)}
    folder = tmp_path / "ü 文"
    folder.mkdir()
    path = folder / NAMES[name]
    for given in (path, str(path), os.fsencode(path)):
        headrace.save(obj, given)
        assert_same(obj, headrace.load(given))
        assert_same(obj, headrace.load(given, mmap=True))
        only(folder, NAMES[name])
    assert_same(obj, torch.load(path))
    assert_same(obj, torch.load(path, mmap=True))


def test_names_that_are_no_text_work(tmp_path: Path) -> None:
    obj = {"a": torch.arange(20_000)}
    path = os.fsencode(tmp_path) + b"/\xff\xfe.pt"
    headrace.save(obj, path)
    assert_same(obj, headrace.load(path))
    assert_same(obj, headrace.load(path, mmap=True))
    assert_same(obj, headrace.load(os.fsdecode(path), mmap=True))
    with open(path, "rb") as file:
        assert_same(obj, torch.load(file))


def test_relative_paths_are_of_the_folder_at_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    headrace.save({"a": 1}, "a.pt")
    headrace.save({"a": 2}, "../b.pt")
    assert headrace.load("a.pt") == {"a": 1}
    assert torch.load("../b.pt") == {"a": 2}
    monkeypatch.chdir(tmp_path)
    assert headrace.load(b"b.pt") == {"a": 2}


def test_a_name_that_is_too_long_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="ENAMETOOLONG"):
        headrace.save({}, tmp_path / ("n" * 253 + ".pt"))
    with pytest.raises(OSError, match="ENAMETOOLONG"):
        headrace.save({}, str(tmp_path) + "/x" * 2100 + ".pt")
    deep = tmp_path
    while len(str(deep)) < 3700:
        deep = deep / ("d" * 200)
    deep.mkdir(parents=True)
    headrace.save({"a": 1}, deep / "a.pt")
    assert headrace.load(deep / "a.pt", mmap=True) == {"a": 1}


def test_open_files_pipes_and_memory_are_refused_with_advice(tmp_path: Path) -> None:
    """pytorch #88320: data behind other data in an open file could not be read back."""
    import io

    for target in (io.BytesIO(), open(tmp_path / "x", "w+b"), 7):  # noqa: SIM115
        for call, advice in ((headrace.save, r"torch\.save"), (headrace.load, r"torch\.load")):
            arguments = ({}, target) if call is headrace.save else (target,)
            with pytest.raises(TypeError, match=advice):
                call(*arguments)  # type: ignore[arg-type,operator]
        if hasattr(target, "close"):
            target.close()  # type: ignore[union-attr]
    assert (tmp_path / "x").read_bytes() == b""


def test_the_mode_is_that_of_the_old_file_or_of_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for mask, expected in ((0o022, 0o644), (0o077, 0o600), (0o000, 0o666)):
        before = os.umask(mask)
        try:
            headrace.save({}, path)
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == expected
        path.unlink()
    headrace.save({}, path)
    path.chmod(0o640)
    headrace.save({"new": 1}, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.pt").symlink_to("real/a.pt")
    headrace.save({"a": 1}, tmp_path / "link.pt")
    headrace.save({"a": 2}, tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink()
    assert torch.load(tmp_path / "real" / "a.pt") == {"a": 2}
    only(tmp_path, "real", "link.pt")
    only(tmp_path / "real", "a.pt")
