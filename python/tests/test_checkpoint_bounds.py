# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""Tensors whose elements are not where one expects them: storages cut short, memory that targets share."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
import headrace.safetensors
import numpy
from headrace import _load

SHORT = r"'w' needs 4000 bytes of its storage, which holds \d+: the storage was resized or freed"


@pytest.mark.parametrize("left", [0, 16, 3999])
def test_a_tensor_that_reaches_beyond_its_storage_is_neither_saved_nor_filled(
    tmp_path: Path, left: int
) -> None:
    whole = torch.ones(1000)
    headrace.save({"w": whole}, tmp_path / "a.pt")
    headrace.save({"w": whole}, tmp_path / "a.safetensors")
    kept = (tmp_path / "a.safetensors").read_bytes()
    for make in (lambda w: w, lambda w: w.view(10, 100).t(), torch.nn.Parameter):
        short = make(torch.ones(1000))
        short.untyped_storage().resize_(left)
        with pytest.raises(ValueError, match=SHORT):
            headrace.save({"w": short}, tmp_path / "a.safetensors")
        if short.dim() == 1:
            with pytest.raises(ValueError, match=SHORT):
                headrace.safetensors.save({"w": short})
            for name in ("a.pt", "a.safetensors"):
                with pytest.raises(ValueError, match=SHORT):
                    headrace.load(tmp_path / name, into={"w": short})
    assert (tmp_path / "a.safetensors").read_bytes() == kept
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "a.safetensors"]


def test_a_storage_may_be_longer_or_end_where_the_tensor_does(tmp_path: Path) -> None:
    base = torch.arange(100.0)
    parts = {"end": base[60:], "front": base[:40], "every": base[::3], "none": base[100:]}
    path = tmp_path / "a.safetensors"
    headrace.save(parts, path)
    found = headrace.load(path)
    assert found.keys() == parts.keys()
    for name, part in parts.items():
        assert torch.equal(found[name], part)


def watched(value: float) -> tuple[Any, weakref.ref[Any]]:
    """A tensor, and what is alive as long as its memory is."""
    array = numpy.full(1000, value, dtype=numpy.float32)
    return torch.from_numpy(array), weakref.ref(array)


def test_memory_that_another_thread_takes_out_of_a_tensor_is_kept_while_it_is_saved(tmp_path: Path) -> None:
    tensor, memory = watched(7.0)
    alive = []

    class Between:
        """A path that is asked for when the addresses are known and nothing is written yet."""

        def __fspath__(self) -> str:
            tensor.data = torch.zeros(1)
            alive.append(memory() is not None)
            return str(tmp_path / "a")

    headrace.save({"w": tensor}, Between(), format="safetensors")
    assert alive == [True]
    assert memory() is None
    assert torch.equal(headrace.load(tmp_path / "a")["w"], torch.full((1000,), 7.0))


def test_memory_that_another_thread_takes_out_of_a_target_is_kept_while_it_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headrace.save({"w": torch.ones(1000), "x": torch.ones(3)}, tmp_path / "a.pt")
    target, memory = watched(0.0)
    alive = []

    class Between:
        def __init__(self, *arguments: Any) -> None:
            self._file = headrace._core.CheckpointFile(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def read(self, *arguments: Any) -> None:
            target.data = torch.zeros(1)
            self._file.read(*arguments)
            array = memory()
            alive.append(array is not None and bool((array == 1).all()))

    monkeypatch.setattr(_load, "CheckpointFile", Between)
    headrace.load(tmp_path / "a.pt", into={"w": target, "x": torch.zeros(3)})
    assert alive == [True]
    assert memory() is None


def interleaved() -> list[Any]:
    base = torch.zeros(8)
    return [base[::2], base[1::2]]


def halves_of_complex() -> list[Any]:
    base = torch.zeros(4, dtype=torch.complex64)
    return [base.real, base.imag]


def rows_and_columns() -> list[Any]:
    base = torch.zeros(5, 5)
    return [base[0, :4], base[1:, 4]]


def bytes_beside_words() -> list[Any]:
    base = torch.zeros(5, dtype=torch.int32)
    return [base[:4].view(torch.float32), base[4:].view(torch.uint8)]


@pytest.mark.parametrize("make", [interleaved, halves_of_complex, rows_and_columns, bytes_beside_words])
def test_targets_may_lie_between_each_other(tmp_path: Path, make: Any) -> None:
    saved = {str(i): torch.arange(t.numel()).to(t.dtype) + 10 * i for i, t in enumerate(make())}
    headrace.save(saved, tmp_path / "a.pt")
    targets = {str(i): t for i, t in enumerate(make())}
    headrace.load(tmp_path / "a.pt", into=targets)
    for name, tensor in saved.items():
        assert torch.equal(targets[name], tensor)


def strided_and_dense() -> list[Any]:
    base = torch.zeros(8)
    return [base[::2], base[:4]]


def a_matrix_and_its_transpose() -> list[Any]:
    base = torch.zeros(3, 3)
    return [base.t(), base]


def one_row_twice() -> list[Any]:
    base = torch.zeros(4, 4)
    return [base[:, 1], base[2]]


def words_over_bytes() -> list[Any]:
    base = torch.zeros(16, dtype=torch.uint8)
    return [base[4:12].view(torch.float32), base[11:]]


def far_apart_with_a_bridge() -> list[Any]:
    base = torch.zeros(100)
    return [base[:50:7], base[3:90:11], base[44:60:1]]


@pytest.mark.parametrize(
    "make",
    [strided_and_dense, a_matrix_and_its_transpose, one_row_twice, words_over_bytes, far_apart_with_a_bridge],
)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_targets_that_share_an_element_are_refused_whatever_their_strides(
    tmp_path: Path, make: Any, suffix: str
) -> None:
    saved = {str(i): torch.ones_like(t).contiguous() for i, t in enumerate(make())}
    headrace.save(saved, tmp_path / f"a{suffix}")
    targets = make()
    with pytest.raises(ValueError, match=r"'\d' and '\d' of into= share memory, and in the file they do not"):
        headrace.load(tmp_path / f"a{suffix}", into={str(i): t for i, t in enumerate(targets)})
    assert not any(t.any() for t in targets)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(10).as_strided((3, 3), (1, 1)),
        lambda: torch.zeros(10).as_strided((3, 3), (2, 1)),
        lambda: torch.zeros(3).expand(3, 3),
        lambda: torch.zeros(3, 1).expand(3, 3),
    ],
)
def test_a_target_that_overlaps_itself_is_refused(tmp_path: Path, make: Any) -> None:
    headrace.save({"w": torch.arange(9.0).view(3, 3)}, tmp_path / "a.pt")
    target = make()
    with pytest.raises(ValueError, match="'w' of into= has several elements at one place"):
        headrace.load(tmp_path / "a.pt", into={"w": target})
    assert not target.any()


def test_odd_strides_without_an_overlap_are_filled(tmp_path: Path) -> None:
    for shape, strides in (((3, 2), (2, 3)), ((2, 2), (3, 2)), ((1, 4), (0, 2)), ((4, 1, 3), (1, 0, 5))):
        values = torch.arange(12.0)[: torch.Size(shape).numel()].reshape(shape)
        headrace.save({"w": values}, tmp_path / "a.pt")
        target = torch.zeros(40).as_strided(shape, strides)
        headrace.load(tmp_path / "a.pt", into={"w": target})
        assert torch.equal(target, values)


def test_targets_that_share_memory_as_the_file_does_are_filled(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    headrace.save({"all": base, "turned": base.t(), "row": base[1], "odd": base[:, 1::2]}, tmp_path / "a.pt")
    new = torch.zeros(3, 4)
    headrace.load(tmp_path / "a.pt", into={"all": new, "turned": new.t(), "row": new[1], "odd": new[:, 1::2]})
    assert torch.equal(new, base)


@pytest.mark.parametrize("format", ["torch", "torch-legacy"])
@pytest.mark.parametrize("weights_only", [True, False])
def test_empty_storages_have_the_type_of_each_reference(
    tmp_path: Path, format: Any, weights_only: bool
) -> None:
    pairs = torch.empty(0, dtype=torch.complex64)
    single = torch.empty(0)
    state = {"a": pairs, "imag": pairs.imag, "conj": pairs.conj(), "b": single, "c": single.view(torch.int32)}
    path = tmp_path / "a.pt"
    for save in (
        lambda: headrace.save(state, path, format=format),
        lambda: torch.save(state, path, _use_new_zipfile_serialization=format == "torch"),
    ):
        save()
        theirs = torch.load(path, weights_only=weights_only)
        ours = headrace.load(path, weights_only=weights_only)
        assert {k: v.dtype for k, v in ours.items()} == {k: v.dtype for k, v in theirs.items()}
        assert ours["imag"].dtype == torch.float32
        with headrace.open(path) as file:
            assert {name: file[name].dtype for name in file} == {k: v.dtype for k, v in theirs.items()}
