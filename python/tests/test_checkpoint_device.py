# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""Saving tensors that are on a device: on a GPU where there is one, else on the host, taken for a device."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
import headrace.safetensors
from checkpoint_support import assert_same
from headrace import _core, _device, _load, _torch_unpickle
from support import highest_resident, run_script

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MIB = 1 << 20
FORMATS = [("torch", "a.pt"), ("torch-legacy", "a.bin"), ("safetensors", "a.safetensors")]


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes the CPU a device where there is no GPU; lengths of what was placed there."""
    found: list[int] = []
    true_place = _device.DeviceMemory.place

    def place(self: Any, storage: Any, begin: int, nbytes: int) -> int | None:
        address = true_place(self, storage, begin, nbytes)
        if address is not None:
            found.append(nbytes)
        return address

    monkeypatch.setattr(_device.DeviceMemory, "place", place)
    if DEVICE == "cpu":
        monkeypatch.setattr(_device, "_on_device", lambda _: True)
        monkeypatch.setattr(_core, "pickle_state", lambda _: None)
        monkeypatch.setattr(_core, "save_safetensors_state", lambda *_: None)
    return found


def tensors(mib: int = 3) -> dict[str, Any]:
    torch.manual_seed(1)
    whole = torch.randint(0, 256, (mib * MIB,), dtype=torch.uint8, device=DEVICE)
    return {
        "whole": whole,
        "odd": torch.randint(0, 256, (2 * MIB + 12345,), dtype=torch.uint8, device=DEVICE),
        "small": torch.arange(1000, device=DEVICE),
        "float": torch.randn(1000, 1111, device=DEVICE),
        "half": torch.randn(1 << 20, device=DEVICE).half(),
        "turned": torch.randn(1100, 900, device=DEVICE).t(),
        "part": torch.randn(3000, 1000, device=DEVICE)[500:2500],
        "empty": torch.empty(0, 5, device=DEVICE),
        "host": torch.randn(700, 700),
    }


@pytest.mark.parametrize(("kind", "name"), FORMATS)
@pytest.mark.parametrize("nbytes", [MIB, 70 * MIB])
def test_the_file_holds_the_values(
    tmp_path: Path, placed: list[int], kind: Any, name: str, nbytes: int
) -> None:
    obj = tensors(nbytes // MIB)
    size = headrace.save(obj, tmp_path / name, format=kind)
    assert (tmp_path / name).stat().st_size == size
    assert len(placed) >= 3
    assert max(placed) >= nbytes
    if kind == "safetensors":
        loaded = pytest.importorskip("safetensors.torch").load_file(tmp_path / name)
    else:
        loaded = torch.load(tmp_path / name, map_location="cpu")
    for key, tensor in obj.items():
        assert torch.equal(loaded[key], tensor.cpu()), key
    found: Any = headrace.load(tmp_path / name, map_location="cpu", verify="auto")
    assert all(torch.equal(found[key], tensor.cpu()) for key, tensor in obj.items())


def test_shared_storages_are_written_once(tmp_path: Path, placed: list[int]) -> None:
    base = torch.randn(1 << 20, device=DEVICE)
    obj = {"a": base, "b": base[1000:], "c": base.view(1024, 1024).t()}
    size = headrace.save(obj, tmp_path / "a.pt")
    assert size < 4 * MIB + 100_000
    assert placed == [4 * MIB]
    loaded = torch.load(tmp_path / "a.pt", map_location="cpu")
    assert_same({key: value.cpu() for key, value in obj.items()}, loaded)
    assert loaded["a"].untyped_storage().data_ptr() == loaded["b"].untyped_storage().data_ptr()


def test_save_file_takes_them_and_save_gives_the_same_bytes(tmp_path: Path, placed: list[int]) -> None:
    obj = {key: value.contiguous() for key, value in tensors().items()}
    headrace.safetensors.save_file(obj, tmp_path / "a")
    assert placed
    assert (tmp_path / "a").read_bytes() == headrace.safetensors.save(obj)


@pytest.mark.parametrize(("kind", "name"), FORMATS)
def test_what_a_copy_raises_comes_out_and_the_old_file_stays(
    tmp_path: Path, placed: list[int], monkeypatch: pytest.MonkeyPatch, kind: Any, name: str
) -> None:
    (tmp_path / name).write_bytes(b"old")

    class LostError(Exception):
        pass

    class NoDevice:
        is_cuda = False

        def __getitem__(self, _: object) -> Any:
            raise LostError("the device is gone")

    true_ready = _device.DeviceMemory.ready

    def ready(self: Any) -> Any:
        self._flat[-1] = NoDevice()
        return true_ready(self)

    monkeypatch.setattr(_device.DeviceMemory, "ready", ready)
    with pytest.raises(LostError, match="the device is gone"):
        headrace.save(tensors(), tmp_path / name, format=kind)
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"old"
    monkeypatch.setattr(_device.DeviceMemory, "ready", true_ready)
    headrace.save(torch.zeros(3), tmp_path / "b.pt")  # the shared handle has forgotten it


def test_the_host_holds_a_part_of_it_only(tmp_path: Path, placed: list[int]) -> None:
    obj = torch.ones(300 * MIB, dtype=torch.uint8, device=DEVICE)
    headrace.save(torch.ones(2 * MIB, dtype=torch.uint8, device=DEVICE), tmp_path / "warm.pt")
    with highest_resident() as highest:
        headrace.save(obj, tmp_path / "a.pt")
    assert placed[-1] == 300 * MIB
    assert 0 < highest() < 200 * MIB


def test_ctrl_c_ends_it(tmp_path: Path, placed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pt").write_bytes(b"old")
    true_ready = _device.DeviceMemory.ready

    def ready(self: Any) -> Any:
        class Slow:
            is_cuda = False

            def __getitem__(self, part: slice) -> Any:
                os.kill(os.getpid(), signal.SIGINT)  # its handler runs when Python does, within this copy
                return obj[part]

        self._flat = [Slow()]
        return true_ready(self)

    obj = torch.ones(100 * MIB, dtype=torch.uint8, device=DEVICE)
    monkeypatch.setattr(_device.DeviceMemory, "ready", ready)
    with pytest.raises(KeyboardInterrupt):
        headrace.save(obj, tmp_path / "a.pt")
    assert os.listdir(tmp_path) == ["a.pt"]
    assert (tmp_path / "a.pt").read_bytes() == b"old"


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> str:
    """A map_location whose storages leave the host, or are treated as if they did where there is no GPU."""
    if DEVICE == "cpu":
        monkeypatch.setattr(_torch_unpickle, "leaves_host", lambda *_: True)
    return DEVICE


@pytest.mark.parametrize(("kind", "name"), FORMATS)
@pytest.mark.parametrize("part_bytes", [1, 3 * MIB, 1 << 40])
def test_loaded_in_parts_it_is_the_same(
    tmp_path: Path, leaving: str, monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, part_bytes: int
) -> None:
    monkeypatch.setattr(_load, "_PART_BYTES", part_bytes)
    obj = tensors()
    headrace.save(obj, tmp_path / name, format=kind)
    loaded: Any = headrace.load(tmp_path / name, map_location=leaving)
    assert loaded.keys() == obj.keys()
    for key, tensor in obj.items():
        assert loaded[key].device.type == leaving, key
        assert torch.equal(loaded[key].cpu(), tensor.cpu()), key
    headrace.save({}, tmp_path / "none.pt")
    assert headrace.load(tmp_path / "none.pt", map_location=leaving) == {}


@pytest.mark.parametrize(("kind", "name"), FORMATS)
def test_tensors_that_need_a_copy_are_filled_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, name: str
) -> None:
    monkeypatch.setattr(_load, "_PART_BYTES", MIB)
    obj = {key: value for key, value in tensors().items() if key != "turned" or kind != "safetensors"}
    headrace.save(obj, tmp_path / name, format=kind)
    into = {
        key: torch.zeros(*value.shape[::-1], dtype=value.dtype, device=value.device).T
        if value.dim() == 2
        else torch.zeros_like(value)
        for key, value in obj.items()
    }
    assert headrace.load(tmp_path / name, into=into) is into
    assert all(torch.equal(into[key], value) for key, value in obj.items())


def test_a_damaged_record_is_told_and_nothing_is_left_reading(
    tmp_path: Path, leaving: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_load, "_PART_BYTES", MIB)
    obj = {f"t{i}": torch.full((MIB // 4,), float(i)) for i in range(20)}
    headrace.save(obj, tmp_path / "a.pt")
    whole = bytearray((tmp_path / "a.pt").read_bytes())
    at = whole.index(obj["t7"].numpy().tobytes()) + 1000
    whole[at] ^= 1
    (tmp_path / "a.pt").write_bytes(whole)
    with pytest.raises(headrace.FormatError, match=r"t7.*CRC-32"):
        headrace.load(tmp_path / "a.pt", map_location=leaving)
    assert not [one for one in threading.enumerate() if one.name.startswith("headrace-load")]


def test_the_host_holds_a_few_parts_of_what_is_loaded(tmp_path: Path, leaving: str) -> None:
    script = f"""
import sys, torch, headrace
from headrace import _torch_unpickle
sys.path.insert(0, {str(Path(__file__).parent)!r})
from support import highest_resident
restored = []
def restore(storage, where):
    restored.append(storage.nbytes())
    return torch.UntypedStorage(1)
_torch_unpickle.restorer = lambda _: restore
_torch_unpickle.leaves_host = lambda *_: True
with highest_resident() as highest:
    try:
        headrace.load({str(tmp_path / "a.safetensors")!r}, map_location="cuda")
    except RuntimeError:
        pass  # the storages are too short for the tensors
assert len(restored) == 30 and sum(restored) == 600 << 20, restored
print(highest() >> 20)
"""
    headrace.save(
        {f"t{i}": torch.ones(20 * MIB, dtype=torch.uint8) for i in range(30)}, tmp_path / "a.safetensors"
    )
    ran = run_script(script)
    assert ran.returncode == 0, ran.stderr
    assert 30 < int(ran.stdout) < 300, ran.stdout


@pytest.mark.parametrize(
    ("map_location", "locations", "leaves"),
    [
        (None, ["cpu", "cpu"], False),
        (None, ["cpu", "cuda:1"], True),
        ("cpu", ["cuda:0"], False),
        ("meta", ["cpu"], False),
        ("cuda", ["cpu"], True),
        (torch.device("cuda", 1), ["cpu"], True),
        (torch.device("cpu"), ["cuda:0"], False),
        ({"cuda:0": "cpu"}, ["cuda:0", "cpu"], False),
        ({"cuda:0": "cpu"}, ["cuda:0", "cuda:1"], True),
        ({"cpu": "cuda:0"}, ["cpu"], True),
        (lambda storage, location: storage, ["cuda:0"], False),
    ],
)
def test_which_storages_leave_the_host(map_location: Any, locations: list[str], leaves: bool) -> None:
    assert _torch_unpickle.leaves_host(map_location, locations) is leaves
