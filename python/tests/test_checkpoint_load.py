# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""headrace.load: files of unmodified torch and of other zip tools, sums, into=, mmap and map_location."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
from checkpoint_support import assert_same, raw
from headrace import _torch_unpickle
from headrace._default import default_handle
from support import open_descriptors, run_script

pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:.*[Qq]uantiz.*deprecated"),
]


def state() -> dict[str, Any]:
    torch.manual_seed(5)
    return {
        "small": torch.arange(7, dtype=torch.int16),
        "odd": torch.arange(3, dtype=torch.uint8),
        "double": torch.randn(9, dtype=torch.float64),
        "large": torch.randn(300_001),
        "empty": torch.empty(0, 2),
        "inner": OrderedDict(a=torch.randn(40_000), b=[torch.ones(2, 3).t(), torch.tensor(True)]),
    }


@pytest.fixture
def config() -> Iterator[Any]:
    """torch's configuration of saving, put back at the end."""
    config = pytest.importorskip("torch.utils.serialization.config", reason="torch before 2.7")
    if not hasattr(config.save, "storage_alignment"):
        pytest.skip("this torch aligns to 64 bytes and no others")
    before = config.save.storage_alignment
    yield config
    config.save.storage_alignment = before


@pytest.mark.parametrize("alignment", [1, 8, 64, 512, 4096, 16384])
def test_files_of_torch_with_any_alignment_load(tmp_path: Path, config: Any, alignment: int) -> None:
    config.save.storage_alignment = alignment
    try:
        torch.save(state(), tmp_path / "a.pt")
        torch.load(tmp_path / "a.pt")
    except Exception as reason:
        pytest.skip(f"torch cannot: {reason}")
    for arguments in ({}, {"mmap": True}, {"verify": "require"}, {"weights_only": False}):
        assert_same(state(), headrace.load(tmp_path / "a.pt", **arguments))  # type: ignore[arg-type]


def test_a_file_without_sums_loads_unverified_and_require_refuses_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state(), path)
    finally:
        torch.serialization.set_crc32_options(before)
    assert_same(state(), headrace.load(path))
    assert_same(state(), headrace.load(path, verify="off"))
    with pytest.raises(headrace.UnavailableError, match="verify=require"):
        headrace.load(path, verify="require")


@pytest.mark.parametrize("container", ["torch-legacy", "safetensors"])
def test_require_refuses_formats_without_sums(tmp_path: Path, container: Any) -> None:
    headrace.save({"a": torch.ones(3)}, tmp_path / "a.x", format=container)
    with pytest.raises(headrace.UnavailableError, match=rf"this {container} file holds no sums"):
        headrace.load(tmp_path / "a.x", verify="require")
    with pytest.raises(headrace.UnavailableError):
        headrace.load(tmp_path / "a.x", verify="require", into={"a": torch.ones(3)})


def rewritten(path: Path, **how: Any) -> None:
    """The archive as another zip tool would write it."""
    text = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(text, "w") as target:
        for record in source.infolist():
            target.writestr(record.filename, source.read(record), **how)
    path.write_bytes(text.getvalue())


def test_an_archive_that_another_tool_wrote_loads(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(state(), path)
    rewritten(path)
    assert_same(state(), torch.load(path))
    for arguments in ({}, {"mmap": True}, {"verify": "require"}):
        assert_same(state(), headrace.load(path, **arguments))  # type: ignore[arg-type]


def test_a_compressed_archive_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(state(), path)
    rewritten(path, compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(headrace.UnavailableError, match="compressed"):
        headrace.load(path)


def test_records_with_headers_that_look_as_long_as_torchs_are_placed_right(tmp_path: Path) -> None:
    """One name in 64 of a streaming zip tool makes as much room as torch's padding, eight bytes off."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.data += bytes(data)
            return len(data)

    values = torch.arange(100.0)
    torch.save({"a": values}, tmp_path / "a.pt")
    for length in range(1, 65):
        pipe = Pipe()
        with zipfile.ZipFile(tmp_path / "a.pt") as source, zipfile.ZipFile(pipe, "w") as target:
            for record in source.infolist():
                name = zipfile.ZipInfo("x" * length + "/" + record.filename.partition("/")[2])
                with target.open(name, "w", force_zip64=True) as opened:
                    opened.write(source.read(record))
        path = tmp_path / "b.pt"
        path.write_bytes(pipe.data)
        assert torch.equal(headrace.load(path)["a"], values), length
        assert torch.equal(headrace.load(path, mmap=True)["a"], values), length
        with headrace.open(path) as opened_file:
            assert torch.equal(opened_file["a"][10:20], values[10:20]), length


@pytest.mark.parametrize("mmap", [False, True])
def test_no_tensor_lies_where_its_elements_must_not(tmp_path: Path, mmap: bool) -> None:
    """Legacy and safetensors files put bytes anywhere; compilers count on aligned floats."""
    obj = {f"{i}.{name}": torch.arange(i + 1).to(getattr(torch, name)) for i in range(5)
           for name in ("uint8", "int16", "float32", "float64", "complex128", "bfloat16")}  # fmt: skip
    torch.save(obj, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    head = json.dumps(
        {
            "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
            "c": {"dtype": "F64", "shape": [1], "data_offsets": [11, 19]},
        }
    ).encode()
    (tmp_path / "a.safetensors").write_bytes(
        struct.pack("<Q", len(head)) + head + b"\1\2\3" + struct.pack("<2fd", 4, 5, 6)
    )
    loaded = headrace.load(tmp_path / "a.pt", mmap=mmap)
    assert_same(obj, loaded)
    other = headrace.load(tmp_path / "a.safetensors", mmap=mmap)
    assert [tensor.tolist() for tensor in other.values()] == [[1, 2, 3], [4, 5], [6]]
    for name, tensor in {**loaded, **other}.items():
        assert tensor.data_ptr() % tensor.element_size() == 0, name


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_mapping_is_of_the_file_that_was_looked_at(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file of the same name, renamed into place between the two looks, must not give its bytes."""
    path = tmp_path / f"a{suffix}"
    headrace.save({"a": torch.full((50_000,), 1.0)}, path)
    headrace.save({"a": torch.full((50_000,), 2.0)}, tmp_path / f"b{suffix}")

    mapped_storage = _torch_unpickle.mapped_storage

    def replaced(file: Any) -> Any:
        os.replace(tmp_path / f"b{suffix}", path)
        return mapped_storage(file)

    monkeypatch.setattr(_torch_unpickle, "mapped_storage", replaced)
    assert headrace.load(path, mmap=True)["a"].unique().tolist() == [1]
    monkeypatch.undo()
    assert headrace.load(path, mmap=True)["a"].unique().tolist() == [2]


def test_a_mapping_keeps_no_descriptor_and_its_changes_stay_private(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    headrace.save({"a": torch.zeros(50_000)}, path)
    loaded = headrace.load(path, mmap=True)
    assert not [name for name in open_descriptors() if name.startswith(str(tmp_path))]
    loaded["a"].fill_(5)
    assert headrace.load(path)["a"].unique().tolist() == [0]
    path.unlink()
    assert loaded["a"].unique().tolist() == [5]


def test_without_proc_a_mapping_works_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pt"
    headrace.save(state(), path)
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    loaded = headrace.load(path, mmap=True)
    monkeypatch.undo()
    assert_same(state(), loaded)
    loaded["large"].fill_(1)
    assert_same(state(), headrace.load(path))


def blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.full(value.shape, 9, dtype=value.dtype)
    if isinstance(value, dict):
        return type(value)((key, blank(item)) for key, item in value.items())
    return [blank(item) for item in value]


FORMATS = ["torch", "torch-legacy"]


@pytest.mark.parametrize("container", FORMATS)
def test_into_fills_nested_tensors_and_bumps_their_versions(tmp_path: Path, container: Any) -> None:
    path = tmp_path / "a.pt"
    headrace.save(state(), path, format=container)
    target = blank(state())
    target["step"] = 5  # no tensor: stays
    tensors = [target["small"], target["large"], target["empty"], *target["inner"]["b"]]
    before = [tensor._version for tensor in tensors]
    addresses = [tensor.data_ptr() for tensor in tensors]
    assert headrace.load(path, into=target) is target
    assert all(tensor._version > version for tensor, version in zip(tensors, before, strict=True))
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert target.pop("step") == 5
    for key in ("small", "odd", "double", "large", "empty"):
        assert raw(target[key]) == raw(state()[key]), key
    assert raw(target["inner"]["a"]) == raw(state()["inner"]["a"])
    for one, other in zip(target["inner"]["b"], state()["inner"]["b"], strict=True):
        assert torch.equal(one, other)


def test_autograd_notices_that_into_changed_what_it_keeps(tmp_path: Path) -> None:
    headrace.save({"w": torch.ones(5)}, tmp_path / "a.pt")
    weight = torch.nn.Parameter(torch.zeros(5))
    loss = (weight * weight).sum()
    headrace.load(tmp_path / "a.pt", into={"w": weight})
    assert weight.tolist() == [1] * 5
    assert weight.requires_grad
    assert weight.is_leaf
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("container", FORMATS)
def test_into_reaches_any_strides_and_touches_nothing_beside(tmp_path: Path, container: Any) -> None:
    values = torch.arange(12.0).view(3, 4)
    headrace.save({"a": values, "b": values.t(), "c": values[:, 1]}, tmp_path / "x.pt", format=container)
    for make in (
        lambda base, rows, columns: base[:rows, :columns],
        lambda base, rows, columns: base[2 : 2 + rows, ::3][:, :columns],
        lambda base, rows, columns: base.t()[3 : 3 + rows, 1 : 1 + columns],
        lambda base, rows, columns: base.view(-1)[5 : 5 + rows * columns].view(rows, columns),
    ):
        bases = [torch.full((20, 30), -1.0) for _ in range(3)]
        line = make(bases[2], 3, 1)[:, 0]
        target = {"a": make(bases[0], 3, 4), "b": make(bases[1], 4, 3), "c": line}
        headrace.load(tmp_path / "x.pt", into=target)
        assert torch.equal(target["a"], values)
        assert torch.equal(target["b"], values.t())
        assert torch.equal(target["c"], values[:, 1])
        for base, view in zip(bases, target.values(), strict=True):
            view.fill_(-1)
            assert base.unique().tolist() == [-1]


@pytest.mark.parametrize("legacy", [False, True])
def test_conjugate_and_negative_tensors_have_their_values_everywhere(tmp_path: Path, legacy: bool) -> None:
    def base() -> Any:
        return torch.tensor([1 + 2j, 3 - 4j, 5j])

    obj = {"conj": base().conj(), "neg": base().conj().imag, "part": base().conj()[1:], "plain": base()}
    path = tmp_path / "a.pt"
    torch.save(obj, path, _use_new_zipfile_serialization=not legacy)
    target = {key: torch.zeros(value.shape, dtype=value.dtype) for key, value in obj.items()}
    headrace.load(path, into=target)
    with headrace.open(path) as opened:
        for key, tensor in target.items():
            assert tensor.tolist() == obj[key].tolist(), key
            assert opened[key].load().tolist() == obj[key].tolist(), key
            assert opened[key][1:].tolist() == obj[key][1:].tolist(), key


def test_into_conjugate_targets_gives_them_the_values(tmp_path: Path) -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    headrace.save({"a": values}, tmp_path / "a.pt")
    target = torch.zeros(2, dtype=torch.cfloat).conj()
    headrace.load(tmp_path / "a.pt", into={"a": target})
    assert target.tolist() == values.tolist()


def test_into_refuses_what_it_cannot_fill_right_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    headrace.save({"a.b": torch.ones(3), "c": torch.zeros(3)}, path)
    whole = torch.full((5,), 9.0)
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    for target, message in (
        ({"a.b": torch.ones(3), "a": {"b": torch.ones(3)}, "c": torch.ones(3)}, "two tensors whose keys"),
        ({"a.b": torch.ones(3, device="meta"), "c": torch.ones(3)}, "'a.b'.*no memory"),
        ({"a.b": quantised, "c": torch.ones(3)}, "'a.b'.*scale"),
        ({"a.b": whole[:3], "c": whole[2:]}, "'a.b' and 'c' of into= share memory"),
        ({"a.b": whole[:3], "c": whole[:3]}, "'a.b' and 'c' of into= share memory"),
        ({"a.b": torch.ones(3, dtype=torch.float64), "c": whole[:3]}, "'a.b' is float32 .* float64"),
        ({"a.b": whole[:3], "c": torch.ones(1, 3)}, r"'c' is float32 of shape \[3\].*\[1, 3\]"),
    ):
        with pytest.raises(ValueError, match=message):
            headrace.load(path, into=target)
    for names, message in (
        ({"a.b": whole[:3]}, "also holds 'c'"),
        ({"a.b": whole[:3], "c": torch.ones(3), "d": torch.ones(3)}, "lacks 'd'"),
        ({}, "also holds 'a.b', 'c'"),
    ):
        with pytest.raises(KeyError, match=message):
            headrace.load(path, into=names)
    with pytest.raises(ValueError, match="choose one"):
        headrace.load(path, into={}, mmap=True)
    assert whole.unique().tolist() == [9]


def test_tied_targets_are_filled_from_tied_tensors(tmp_path: Path) -> None:
    weight = torch.arange(50_000.0)
    for container in (*FORMATS, "safetensors"):
        obj = {"a": weight, "b": weight}
        headrace.save(obj, tmp_path / "x", format=container)  # type: ignore[arg-type]
        target = torch.zeros(50_000)
        if container == "safetensors":  # which holds it twice
            with pytest.raises(ValueError, match="share memory"):
                headrace.load(tmp_path / "x", into={"a": target, "b": target})
            continue
        headrace.load(tmp_path / "x", into={"a": target, "b": target})
        assert torch.equal(target, weight)


def test_a_failed_into_bumps_the_versions(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    headrace.save({"a": torch.zeros(50_000)}, path)
    data = bytearray(path.read_bytes())
    data[100_000] ^= 1
    path.write_bytes(data)
    target = torch.ones(50_000)
    with pytest.raises(headrace.FormatError, match="'a'"):
        headrace.load(path, into={"a": target})
    assert target._version > 0


def test_into_in_inference_mode_works(tmp_path: Path) -> None:
    headrace.save({"a": torch.arange(5.0)}, tmp_path / "a.pt")
    with torch.inference_mode():
        target = {"a": torch.zeros(5)}
        headrace.load(tmp_path / "a.pt", into=target)
        assert target["a"].tolist() == [0, 1, 2, 3, 4]


def test_map_location_means_what_it_means_to_torch(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "a.pt")
    seen: list[str] = []

    def where(storage: Any, location: str) -> Any:
        seen.append(location)
        return storage

    for location in ("cpu", torch.device("cpu"), {"cuda:0": "cpu"}, where):
        assert_same(state(), headrace.load(tmp_path / "a.pt", map_location=location))
    assert set(seen) == {"cpu"}
    meta = headrace.load(tmp_path / "a.pt", map_location="meta")
    assert all(tensor.is_meta for tensor in (meta["large"], meta["inner"]["a"]))
    assert meta["inner"]["b"][0].stride() == (1, 3)


def test_a_file_saved_on_another_device_says_so(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(data.replace(b"X\x03\0\0\0cpu", b"X\x03\0\0\0xyz"))
    # Without the sum, which tells that the file was changed.
    for load in (torch.load, lambda path, **how: headrace.load(path, verify="off", **how)):
        with pytest.raises(RuntimeError, match="xyz"):
            load(tmp_path / "a.pt")
        assert load(tmp_path / "a.pt", map_location="cpu")["a"].tolist() == [1, 1, 1]


def test_missing_and_odd_paths_are_the_systems_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        headrace.load(tmp_path / "a.pt")
    assert os.fspath(missing.value.filename) == str(tmp_path / "a.pt")
    with pytest.raises(FileNotFoundError):
        headrace.load(tmp_path / "none" / "a.pt")
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(NotADirectoryError):
        headrace.load(tmp_path / "file" / "a.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(OSError, match=r"pipe\.pt"):
        headrace.load(tmp_path / "pipe.pt")
    with pytest.raises(OSError, match=r"."):
        headrace.load("/dev/zero")
    with pytest.raises(ValueError, match="verify must be"):
        headrace.load(tmp_path / "file", verify="maybe")  # type: ignore[arg-type]


def test_a_name_that_only_begins_like_a_file_is_not_that_file(tmp_path: Path) -> None:
    headrace.save({"step": 10}, tmp_path / "step_10.pt")
    with pytest.raises(FileNotFoundError):
        headrace.load(tmp_path / "step_1")


def test_a_forked_child_loads_and_saves_by_a_handle_of_its_own(tmp_path: Path) -> None:
    code = """
        import os, sys, torch, headrace
        path = sys.argv[1]
        obj = {"a": torch.arange(300_000)}
        headrace.save(obj, path)
        child = os.fork()
        if child == 0:
            loaded = headrace.load(path)
            headrace.save(loaded, path + ".child.pt")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(headrace.load(path + ".child.pt")["a"], obj["a"])
        headrace.save(obj, path)
    """
    done = run_script(code, str(tmp_path / "a.pt"))
    assert done.returncode == 0, done.stderr


def test_loaded_tensors_outlive_file_and_handle(tmp_path: Path) -> None:
    headrace.save(state(), tmp_path / "a.pt")
    with headrace.Handle() as handle:
        loaded = headrace.load(tmp_path / "a.pt", handle=handle)
    (tmp_path / "a.pt").unlink()
    assert_same(state(), loaded)
    kept = loaded["inner"]["a"]
    del loaded
    assert torch.equal(kept, state()["inner"]["a"])
    assert default_handle() is default_handle()


def test_a_load_while_the_interpreter_ends(tmp_path: Path) -> None:
    headrace.save({"a": torch.arange(6.0)}, tmp_path / "a.pt")
    done = run_script(
        """
        import atexit, sys, torch, headrace
        def last():
            target = torch.zeros(12)
            headrace.load(sys.argv[1], into={"a": target[::2]})
            print(target.tolist(), headrace.load(sys.argv[1])["a"].sum().item())
        atexit.register(last)
        """,
        str(tmp_path / "a.pt"),
    )
    assert done.stdout == "[0.0, 0.0, 1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0, 0.0, 5.0, 0.0] 15.0\n", done
