# SPDX-License-Identifier: Apache-2.0
"""headrace.safetensors.safe_open and load_file: slices, settings, devices, threads, models."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import headrace  # noqa: E402
from headrace import safetensors as ours  # noqa: E402
from safetensors_support import by_hand, entry, raw, same, same_dicts, tensor_of  # noqa: E402

INDICES: list[Any] = [
    0, -1, 3, True, slice(None), slice(1, 3), slice(1, 4, 2), slice(3, 1), slice(2, 100), slice(-2, None),
    slice(-100, 2), slice(4, 9), ..., None, (), (0, 1), (0, -1, 2), (0, ...), (..., 0), (None, 0), (0, None),
    (slice(1, 2), slice(2, 5)), (slice(None), slice(None, None, 2)), (slice(1, 3), ..., slice(0, 2)),
    (0, slice(5, 2)), (1, slice(1, 4, 2), 1), (slice(None), 0), [0, 2], [], (slice(1, 3), [1, 3]),
    (0, [1, 2]), (0, slice(1, 3), [0, 1]), (slice(0, 4, 3), None, 1), [True, False, True, True],
]  # fmt: skip

WRONG_INDICES: list[Any] = [
    4, -5, 1.5, (0, 6), (0, 1, 2, 3), slice(None, None, -1), slice(0, 2, 0), slice(0.5, 2),
]  # fmt: skip


def test_slices_are_what_indexing_gives(tmp_path: Path, its_open: Any) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    full = torch.arange(4 * 6 * 3, dtype=torch.int32).reshape(4, 6, 3)
    ours.save_file(
        {"before": torch.ones(7), "w": full, "z": torch.ones(0, 3), "s": torch.tensor(1.5)}, tmp_path / "a"
    )
    more = [
        torch.tensor([0, 2]),
        torch.tensor(1),
        numpy.int64(2),
        slice(numpy.int64(1), numpy.int64(3)),
        full > 30,
    ]
    with ours.safe_open(tmp_path / "a", "pt") as mine, its_open(tmp_path / "a", "pt") as other:
        part = mine.get_slice("w")
        for index in [*INDICES, *more]:
            assert torch.equal(part[index], full[index]), index
            if part[index].numel() > 1:
                assert part[index].stride() == full[index].stride(), index
            assert torch.equal(other.get_slice("w")[index], full[index]), index
        for name in ("w", "z"):
            for index in WRONG_INDICES:
                with pytest.raises(Exception) as wanted:
                    other.get_slice(name)[index]
                with pytest.raises(wanted.type):
                    mine.get_slice(name)[index]
        for index in (0, slice(None)):
            with pytest.raises(IndexError):
                mine.get_slice("s")[index]
        assert mine.get_slice("s")[()].item() == mine.get_slice("s")[...].item() == 1.5
        assert mine.get_slice("z")[:, 1:2].shape == (0, 1)
    array = full.numpy()
    with ours.safe_open(tmp_path / "a", "np") as mine:
        for index in [*INDICES, numpy.int64(2), numpy.array([0, 2]), array > 30]:
            one = mine.get_slice("w")[index]
            assert isinstance(one, numpy.ndarray)
            assert one.shape == array[index].shape, index
            assert (one == array[index]).all(), index
        with pytest.raises(ValueError, match="step"):
            mine.get_slice("w")[::-1]


def test_slices_read_the_rows_they_need(tmp_path: Path) -> None:
    rows = torch.arange(1000 * 1024, dtype=torch.float32).reshape(1000, 1024)
    ours.save_file({"w": rows}, tmp_path / "a")
    with ours.safe_open(tmp_path / "a", "pt") as opened:
        part = opened.get_slice("w")
        asked: list[int] = []
        file = part._file

        class Watched:
            def read(self, handle: Any, reads: list[Any], verify: str) -> None:
                asked.extend(one[3] for one in reads)
                file.read(handle, reads, verify)

        part._file = Watched()  # type: ignore[assignment]
        for index, read in (
            (5, 1), (slice(10, 20), 10), (slice(0, 1000, 999), 1000), (slice(0, 1000, 500), 501),
            (slice(7, 7), 0), ((slice(998, None), slice(0, 2)), 2),
        ):  # fmt: skip
            asked.clear()
            assert torch.equal(part[index], rows[index])
            assert sum(asked) == read * 4096, index
        asked.clear()
        assert part[3, 100:108].tolist() == rows[3, 100:108].tolist()
        assert asked == [32]


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="torch before 2.8 has no float4")
def test_packed_halves_are_sliced_as_torch_counts_them(tmp_path: Path) -> None:
    packed = tensor_of("float4_e2m1fn_x2", 4, 6)
    ours.save_file({"w": packed}, tmp_path / "a")
    with ours.safe_open(tmp_path / "a", "pt") as opened:
        part = opened.get_slice("w")
        assert part.get_shape() == [4, 12]
        for index in (1, slice(1, 3), (2, slice(1, 4))):
            assert raw(part[index]) == raw(packed.view(torch.uint8)[index])
    odd = by_hand(tmp_path / "b", {"w": entry("F4", [2, 1], 0, 1)}, b"1")
    six = by_hand(tmp_path / "c", {"w": entry("F6_E2M3", [4], 0, 3)}, b"123")
    for path in (odd, six):
        for load in (ours.load_file, lambda path: ours.load(path.read_bytes())):
            with pytest.raises(ours.SafetensorError, match="'w'"):
                load(path)
        with ours.safe_open(path, "pt") as opened:
            assert opened.get_slice("w").get_dtype() in ("F4", "F6_E2M3")
            with pytest.raises(ours.SafetensorError, match="'w'"):
                opened.get_tensor("w")


def test_default_device_and_type_change_nothing(tmp_path: Path) -> None:
    obj = {
        "w": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "s": torch.tensor(2.5),
        "z": torch.ones(0, 3),
    }
    ours.save_file(obj, tmp_path / "a")
    data = ours.save(obj)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            loaded = [ours.load_file(tmp_path / "a"), ours.load(data), headrace.load(tmp_path / "a")]
            with ours.safe_open(tmp_path / "a", "pt") as opened:
                loaded.append({name: opened.get_tensor(name) for name in obj})
                loaded.append(opened.get_tensors())
                loaded.append({name: opened.get_slice(name)[...] for name in obj})
                row = opened.get_slice("w")[1]
            again = ours.save(obj)
            ours.save_file(obj, tmp_path / "b")
    finally:
        torch.set_default_dtype(torch.float32)
    assert again == data == (tmp_path / "b").read_bytes()
    for one in loaded:
        same_dicts(one, obj, ordered=False)
    same(row, obj["w"][1])


def test_loaded_tensors_have_memory_of_their_own(tmp_path: Path) -> None:
    obj = {name: torch.arange(5.0) for name in "abc"}
    ours.save_file(obj, tmp_path / "a")
    data = ours.save(obj)
    for loaded in (ours.load_file(tmp_path / "a"), ours.load(data)):
        loaded["a"] += 1
        loaded["b"].zero_()
        same(loaded["c"], torch.arange(5.0))
        assert loaded["c"].untyped_storage().nbytes() == 20
        ours.save_file(loaded, tmp_path / "b")
    same_dicts(ours.load(bytearray(data)), obj)
    with pytest.raises(TypeError):
        ours.load("text")  # type: ignore[arg-type]


def test_devices_frameworks_and_backends(tmp_path: Path, its_open: Any) -> None:
    path = tmp_path / "a"
    ours.save_file({"w": torch.ones(2)}, path)
    for device in ("cpu", None, torch.device("cpu"), "cpu:0"):
        assert ours.load_file(path, device)["w"].device == torch.device("cpu")
    for backend in ("mmap", "pread"):
        assert ours.load_file(path, backend=backend).keys() == {"w"}
    for framework in ("pt", "torch", "pytorch"):
        assert type(ours.safe_open(path, framework).get_tensor("w")) is type(
            its_open(path, framework).get_tensor("w")
        )
    for arguments, keywords in (
        (("PT",), {}), (("tf",), {}), (("pt", "meta"), {}), (("pt", "nowhere"), {}), (("np", "cuda"), {}),
        (("pt",), {"backend": "read"}),
    ):  # fmt: skip
        with pytest.raises(ours.SafetensorError):
            ours.safe_open(path, *arguments, **keywords)
    with pytest.raises(TypeError):
        ours.safe_open(path, None)  # type: ignore[arg-type]
    if not torch.accelerator.is_available():
        with pytest.raises(RuntimeError):
            ours.load_file(path, device=0)


def test_a_gpu_gets_its_tensors(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    obj = {"w": torch.arange(12.0).reshape(3, 4), "z": torch.ones(0, 2), "s": torch.tensor(1.5)}
    ours.save_file({name: tensor.cuda() for name, tensor in obj.items()}, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == ours.save(obj)
    for device in ("cuda", "cuda:0", 0):
        for name, tensor in ours.load_file(tmp_path / "a", device=device).items():
            same(tensor, obj[name].cuda(), name)
    with ours.safe_open(tmp_path / "a", "pt", device="cuda") as opened:
        same(opened.get_slice("w")[1:], obj["w"][1:].cuda())


def test_what_is_not_there(tmp_path: Path) -> None:
    for load in (ours.load_file, lambda path: ours.safe_open(path, "np")):
        with pytest.raises(FileNotFoundError):
            load(tmp_path / "missing")
        with pytest.raises(OSError, match="EISDIR"):
            load(tmp_path)
    with pytest.raises(ours.SafetensorError):
        ours.save_file({}, tmp_path / "missing" / "a")
    ours.save_file({"w": torch.ones(2)}, tmp_path / "a")
    with ours.safe_open(os.fsencode(tmp_path / "a"), "pt") as opened:
        for ask in (opened.get_tensor, opened.get_slice):
            with pytest.raises(ours.SafetensorError, match="'v'"):
                ask("v")
            with pytest.raises(TypeError):
                ask(1)  # type: ignore[arg-type]
        part = opened.get_slice("w")
        assert "closed" not in repr(opened)
    assert "closed" in repr(opened)
    for closed in (opened.keys, opened.offset_keys, opened.metadata, opened.get_tensors):
        with pytest.raises(ours.SafetensorError, match="closed"):
            closed()
    with pytest.raises(headrace.ClosedError):
        opened.get_tensor("w")
    assert part[1:].tolist() == [1.0]  # a slice holds the file open, as that of the package does


def test_threads_share_one_opened_file(tmp_path: Path) -> None:
    obj = {str(i): torch.full((1000,), float(i)) for i in range(16)}
    ours.save_file(obj, tmp_path / "a")
    wrong: list[str] = []
    with ours.safe_open(tmp_path / "a", "pt") as opened:

        def read() -> None:
            for name, tensor in obj.items():
                if not torch.equal(opened.get_tensor(name), tensor) or opened.get_slice(name)[7] != float(
                    name
                ):
                    wrong.append(name)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


class Tied(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.b = torch.nn.Linear(3, 3)
        self.a = self.b
        self.c = torch.nn.Linear(3, 2)
        self.whole = torch.nn.Parameter(torch.arange(12.0))
        self.register_buffer("part", self.whole.data[2:5])
        self.register_buffer("flipped", torch.arange(6.0).reshape(2, 3).t())


def test_models_with_shared_tensors_both_ways(tmp_path: Path, package: Any, its_open: Any) -> None:
    model = Tied()
    metadata = {"mine": "1", "b.bias": "kept"}
    ours.save_model(model, tmp_path / "ours", metadata)
    assert metadata == {"mine": "1", "b.bias": "kept"}
    package.save_model(model, tmp_path / "theirs", dict(metadata))
    for path in (tmp_path / "ours", tmp_path / "theirs"):
        with its_open(path, "pt") as opened:
            assert opened.keys() == ["a.bias", "a.weight", "c.bias", "c.weight", "flipped", "whole"]
            assert opened.metadata() == {
                "mine": "1",
                "b.bias": "kept",
                "b.weight": "a.weight",
                "part": "whole",
            }
        for load in (ours.load_model, package.load_model):
            again = Tied()
            again.whole.data.zero_()
            assert load(again, path) == (set(), [])
            for name, tensor in model.state_dict().items():
                assert torch.equal(again.state_dict()[name], tensor), name
            assert again.a.weight is again.b.weight
    other = torch.nn.Linear(3, 4)
    assert ours.load_model(other, tmp_path / "ours", strict=False) == package.load_model(
        other, tmp_path / "ours", strict=False
    )
    with pytest.raises(
        RuntimeError, match=r"Linear(.|\n)*Missing.*\"bias\", \"weight\"(.|\n)*Unexpected.*\"a.bias\""
    ):
        ours.load_model(other, tmp_path / "ours")


def test_which_views_a_model_keeps(tmp_path: Path, package: Any, its_open: Any) -> None:
    class Views(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            base = torch.arange(20.0)
            for name, tensor in {"a": base, "b": base[1:3], "c": base[10:], "d": base[12:14]}.items():
                self.register_buffer(name, tensor)

    for save, path in ((ours.save_model, tmp_path / "ours"), (package.save_model, tmp_path / "theirs")):
        try:
            save(Views(), path)
            with its_open(path, "pt") as opened:
                kept = (opened.keys(), opened.metadata())
        except RuntimeError:
            kept = ("refused",)  # type: ignore[assignment]
        if save is ours.save_model:
            first = kept
    assert first == kept


def test_models_that_cannot_be_saved_whole(tmp_path: Path, package: Any) -> None:
    partial = torch.nn.Linear(3, 3)
    partial.weight = torch.nn.Parameter(torch.zeros(10, 3)[:3])
    partial.bias = torch.nn.Parameter(partial.weight.data[0])
    for save in (ours.save_model, package.save_model):
        with pytest.raises(RuntimeError, match="bias"):
            save(partial, tmp_path / "a")
        with pytest.raises(ValueError, match="flipped"):
            save(Tied(), tmp_path / "a", force_contiguous=False)
    assert list(tmp_path.iterdir()) == []


def test_numpy_files_need_no_torch(tmp_path: Path) -> None:
    ours.save_file({"w": torch.arange(3)}, tmp_path / "a")
    code = """
        import sys
        from headrace.safetensors import safe_open
        with safe_open(sys.argv[1], "np") as f:
            print(f.get_tensor("w").tolist(), f.get_slice("w")[1:].tolist(), "torch" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "a")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(headrace.__file__).parents[1])},
    )
    assert done.stdout.strip() == "[0, 1, 2] [1, 2] False"
