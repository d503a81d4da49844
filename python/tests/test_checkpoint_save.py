# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""headrace.save beside unmodified torch: what torch saves and loads, bit for bit."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
from checkpoint_support import DTYPES, QUANTISED, assert_same, of_dtype, only
from support import need_tool, run_script

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:BComplex32 support is experimental"),
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants"),
    pytest.mark.filterwarnings("ignore:.*[Qq]uantiz.*deprecated"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Config:
    width: int
    name: str
    weight: Any = None


Point = collections.namedtuple("Point", "x y")


class Marked(torch.Tensor):  # type: ignore[misc]
    """A subclass with an attribute of its own."""


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(5, 7)
        self.second = torch.nn.Linear(7, 5)
        self.second.weight = torch.nn.Parameter(self.first.weight.detach().t())
        self.norm = torch.nn.BatchNorm1d(5)
        self.register_buffer("mask", torch.eye(5, dtype=torch.bool))
        self.tied = self.first


def trained() -> dict[str, Any]:
    torch.manual_seed(1)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, amsgrad=True)
    for _ in range(2):
        optimizer.zero_grad()
        net.second(net.first(torch.randn(3, 5))).sum().backward()
        optimizer.step()
    return {
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "epoch": 3,
    }


def shared() -> list[Any]:
    base = torch.arange(100_000.0)
    return [
        base[:10],
        base[5:15],
        base.view(1000, 100).t(),
        base,
        base[::7],
        base[3],
        base.view(50, 2000)[:, 5:9],
    ]


def subclassed() -> Any:
    marked = torch.arange(4.0).as_subclass(Marked)
    marked.note = {"a": 1}
    return marked


def with_attribute() -> Any:
    tensor = torch.ones(3)
    tensor.note = "kept"
    return tensor


def sparse_csr() -> Any:
    return torch.eye(6, dtype=torch.float64).to_sparse_csr()


# What weights_only admits.
ADMITTED: dict[str, Callable[[], Any]] = {
    "nothing": dict,
    "None": lambda: None,
    "no tensors": lambda: {"a": 1, "b": [None, True, 2.5, "x"], "c": (1, (2,))},
    "one tensor": lambda: torch.arange(5),
    "a scalar": lambda: torch.tensor(2.5, dtype=torch.float64),
    "empties": lambda: [
        torch.empty(0),
        torch.empty(3, 0, 2, dtype=torch.int8),
        torch.empty(0, dtype=torch.cfloat),
    ],
    "empties around data": lambda: [
        torch.empty(0),
        torch.ones(3),
        torch.empty(2, 0),
        torch.ones(1),
        torch.empty(0),
    ],
    "shared storages": shared,
    "strides": lambda: [
        torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(1, 5).expand(4, 5),
        torch.arange(10)[1::3],
        torch.arange(6.0).as_strided((2, 2), (1, 1), 3),
    ],
    "conjugate and negative": lambda: [
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex128).conj()[1:],
    ],
    "coo": lambda: torch.tensor([[0, 2.0], [3, 0]]).to_sparse(),
    "coo not coalesced": lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 3)),
    "csr": sparse_csr,
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "quantised by channel": lambda: torch.quantize_per_channel(
        torch.arange(6.0).view(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([1, 2]), 0, torch.qint8
    ),
    "nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]),
    "meta": lambda: {"m": torch.empty(4, 5, device="meta"), "real": torch.ones(2)},
    "parameters": lambda: [
        torch.nn.Parameter(torch.ones(3)),
        torch.nn.Parameter(torch.ones(3), requires_grad=False),
        torch.ones(2, requires_grad=True),
        torch.nn.Buffer(torch.zeros(2)),
    ],
    "an attribute on a tensor": with_attribute,
    "trained": trained,
    "containers": lambda: {
        "ordered": collections.OrderedDict(b=torch.ones(1), a=torch.zeros(1)),
        "counter": collections.Counter("hello"),
        "set": {1, "two", (3, 4)},
        "keys": {2: 2, "x": 3, (1, "y"): 4, 2.5: 5, None: 6, True: 7},
        "bytes": b"\0\xff plain",
        "bytearray": bytearray(b"\0\xff plain"),
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "complex": 1 - 2j,
        "ints": [0, -1, 255, 256, 65_535, 65_536, 2**31, -(2**31) - 1, 2**63, -(2**63) - 1, 10**60],
        "floats": [0.0, -0.0, float("inf"), 1e-320, 0.1],
        "texts": ["", "é", "日本語 🚀", "a\0b\n", "x" * 70_000],
        "deep": [[[[[[[[[[[[torch.ones(1)]]]]]]]]]]]],
        "long": list(range(3000)),
    },
    "2000 small tensors": lambda: {
        f"layer.{i}.weight": torch.full((i % 7 + 1,), float(i)) for i in range(2000)
    },
    "sizes around the edges": lambda: {
        str(size + more): torch.arange(size + more, dtype=torch.int64).to(torch.uint8)
        for size in (4096, 64 << 10, 2 << 20)
        for more in (-1, 0, 1, 16, 4095)
    },
}
# What only weights_only=False takes.
TRUSTED: dict[str, Callable[[], Any]] = {
    "a module": Net,
    "a subclass": subclassed,
    "objects": lambda: {
        "enum": Colour.RED,
        "config": Config(3, "x", torch.ones(2)),
        "point": Point(torch.ones(1), 2),
        "date": datetime.date(2020, 2, 3),
        "default": collections.defaultdict(list, {"a": [torch.ones(2)]}),
        "function": os.path.join,
        "class": Config,
        "surrogate": "\ud800",
    },
}
CONTAINERS = ["torch", "torch-legacy"]


def legacy_lacks(name: str) -> bool:
    """torch writes these into its legacy container, and cannot read them."""
    return name.startswith(
        ("float8", "float4", "uint16", "uint32", "uint64", "complex32", "bcomplex32", "bits")
    )


@pytest.mark.parametrize("name", ADMITTED)
@pytest.mark.parametrize("container", CONTAINERS)
def test_torch_and_we_load_what_we_saved(tmp_path: Path, name: str, container: Any) -> None:
    obj = ADMITTED[name]()
    path = tmp_path / "file.pt"
    assert headrace.save(obj, path, format=container) == path.stat().st_size
    only(tmp_path, "file.pt")
    if (name, container) != (
        "nested tensor",
        "torch-legacy",
    ):  # torch looks at their sizes before it reads them
        assert_same(obj, torch.load(path, weights_only=True))
        assert_same(obj, torch.load(path, weights_only=False))
    assert_same(obj, headrace.load(path))
    assert_same(obj, headrace.load(path, weights_only=False))
    assert_same(obj, headrace.load(path, mmap=True))
    if container == "torch":
        assert_same(obj, torch.load(path, weights_only=True, mmap=True))
        assert_same(obj, headrace.load(path, verify="require"))
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None


@pytest.mark.parametrize("name", TRUSTED)
@pytest.mark.parametrize("container", CONTAINERS)
def test_objects_of_any_class_load_with_weights_only_off_and_are_refused_with_it(
    tmp_path: Path, name: str, container: Any
) -> None:
    obj = TRUSTED[name]()
    path = tmp_path / "file.pt"
    headrace.save(obj, path, format=container)
    for loaded in (torch.load(path, weights_only=False), headrace.load(path, weights_only=False)):
        if name == "objects":
            config, other = obj["config"], loaded["config"]
            assert (config.width, config.name) == (other.width, other.name)
            assert_same(config.weight, other.weight)
            assert_same(tuple(obj["point"]), tuple(loaded["point"]))
            for key in ("enum", "date", "function", "class", "surrogate"):
                assert obj[key] == loaded[key]
            assert_same(obj["default"]["a"], loaded["default"]["a"])
        else:
            assert_same(obj, loaded)
    with pytest.raises((headrace.FormatError, ValueError, Exception), match=r"weights_only|admit|allow"):
        headrace.load(path)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_through_both_containers_in_both_directions(tmp_path: Path, name: str) -> None:
    tensor = of_dtype(name)
    obj = {"x": tensor, "again": tensor, "empty": tensor[:0]}
    for container in CONTAINERS:
        ours, theirs = tmp_path / f"ours-{container}.pt", tmp_path / f"theirs-{container}.pt"
        if container == "torch-legacy" and legacy_lacks(name):
            with pytest.raises(ValueError, match="legacy container"):
                headrace.save(obj, ours, format="torch-legacy")
            assert not ours.exists()
            continue
        torch.save(obj, theirs, _use_new_zipfile_serialization=container == "torch")
        assert_same(obj, torch.load(theirs))
        headrace.save(obj, ours, format=container)  # type: ignore[arg-type]
        assert_same(obj, torch.load(ours))
        for path in (ours, theirs):
            assert_same(obj, headrace.load(path))
            assert_same(obj, headrace.load(path, mmap=True))


@pytest.mark.parametrize("container", CONTAINERS)
def test_shared_storages_are_written_once_and_are_still_shared(tmp_path: Path, container: Any) -> None:
    """pytorch #1995, #33101: a view saves its whole base, once."""
    path = tmp_path / "file.pt"
    assert headrace.save(shared(), path, format=container) < 400_000 + 40_000
    for loaded in (torch.load(path), headrace.load(path), headrace.load(path, mmap=True)):
        assert len({tensor.untyped_storage()._cdata for tensor in loaded}) == 1
        loaded[0][5] = -1
        assert float(loaded[1][0]) == -1
        assert float(loaded[3][5]) == -1


def test_tied_weights_stay_one_object(tmp_path: Path) -> None:
    headrace.save(Net(), tmp_path / "net.pt")
    for load in (torch.load, headrace.load):
        net = load(tmp_path / "net.pt", weights_only=False)
        assert net.tied is net.first
        assert net.tied.weight is net.first.weight


def test_the_metadata_of_a_state_dict_stays(tmp_path: Path) -> None:
    state = Net().state_dict()
    assert state._metadata["norm"] == {"version": 2}
    headrace.save(state, tmp_path / "file.pt")
    for loaded in (torch.load(tmp_path / "file.pt"), headrace.load(tmp_path / "file.pt")):
        assert loaded._metadata == state._metadata
        Net().load_state_dict(loaded)


def test_an_optimizer_goes_on_where_it_was(tmp_path: Path) -> None:
    state = trained()
    headrace.save(state, tmp_path / "file.pt")
    loaded = headrace.load(tmp_path / "file.pt")
    net = Net()
    net.load_state_dict(loaded["net"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1.0, amsgrad=True)
    optimizer.load_state_dict(loaded["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 1e-3
    optimizer.zero_grad()
    net.second(net.first(torch.ones(3, 5))).sum().backward()
    optimizer.step()  # resumes, in memory that we made


def test_a_storage_that_ends_within_an_element_can_be_read_again(tmp_path: Path) -> None:
    """torch writes all of its bytes and then cannot read the record."""
    odd = torch.empty(0).set_(torch.UntypedStorage(10), 0, (2,), (1,)).fill_(5)
    for container in CONTAINERS:
        headrace.save({"x": odd}, tmp_path / "file.pt", format=container)  # type: ignore[arg-type]
        assert torch.load(tmp_path / "file.pt")["x"].tolist() == [5, 5]
        assert headrace.load(tmp_path / "file.pt")["x"].tolist() == [5, 5]


@pytest.fixture
def calculated() -> Iterator[None]:
    """torch.load works out where records lie, and with the debug flag compares that with their headers."""
    config = pytest.importorskip("torch.utils.serialization.config", reason="torch before 2.7")
    if not hasattr(config.load, "calculate_storage_offsets"):
        pytest.skip("this torch does not calculate offsets")
    before = config.load.calculate_storage_offsets
    config.load.calculate_storage_offsets = True
    os.environ["TORCH_SERIALIZATION_DEBUG"] = "1"
    yield
    del os.environ["TORCH_SERIALIZATION_DEBUG"]
    config.load.calculate_storage_offsets = before


@pytest.mark.parametrize("alignment", [64, 256, 4096, 32768])
def test_torch_calculates_the_places_that_we_chose(tmp_path: Path, calculated: None, alignment: int) -> None:
    for name in ("sizes around the edges", "shared storages", "empties around data", "trained", "csr"):
        obj = ADMITTED[name]()
        path = tmp_path / "file.pt"
        headrace.save(obj, path, alignment=alignment)
        assert_same(obj, torch.load(path, mmap=True))
        assert_same(obj, torch.load(path))
        assert_same(obj, headrace.load(path, verify="require"))
        assert_same(obj, headrace.load(path, mmap=True))
        with open(path, "rb") as file, zipfile.ZipFile(path) as archive:
            for record in archive.infolist():
                file.seek(record.header_offset + 26)
                names = int.from_bytes(file.read(2), "little") + int.from_bytes(file.read(2), "little")
                assert (record.header_offset + 30 + names) % alignment == 0


def test_unzip_finds_nothing_wrong(tmp_path: Path) -> None:
    need_tool("unzip")
    for alignment in (64, 4096):
        headrace.save(ADMITTED["sizes around the edges"](), tmp_path / "file.pt", alignment=alignment)
        done = subprocess.run(
            ["unzip", "-t", str(tmp_path / "file.pt")], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
        assert "No errors detected" in done.stdout


@pytest.mark.parametrize("tool", ["zipfile", "zip"])
def test_a_member_that_another_tool_adds_leaves_the_tensors(tmp_path: Path, tool: str) -> None:
    """pytorch PR #40757: other zip tools write the directory anew, in their own way."""
    obj = ADMITTED["sizes around the edges"]()
    path = tmp_path / "file.pt"
    headrace.save(obj, path)
    if tool == "zipfile":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("file/notes.txt", "added")
    else:
        (tmp_path / "file").mkdir()
        (tmp_path / "file" / "notes.txt").write_text("added")
        command = [need_tool("zip"), "-q", "-0", "file.pt", "file/notes.txt"]
        shutil.move(path, tmp_path / "file.zip")
        command[3] = "file.zip"
        subprocess.run(command, cwd=tmp_path, check=True)
        shutil.move(tmp_path / "file.zip", path)
    assert_same(obj, torch.load(path))
    assert_same(obj, headrace.load(path))
    assert_same(obj, headrace.load(path, mmap=True))
    assert_same(obj, headrace.load(path, verify="require"))


def test_no_durability_gives_the_same_file(tmp_path: Path) -> None:
    obj = ADMITTED["sizes around the edges"]()
    headrace.save(obj, tmp_path / "data.pt", durability="data")
    data = (tmp_path / "data.pt").read_bytes()
    headrace.save(obj, tmp_path / "data.pt", durability="none")
    assert (tmp_path / "data.pt").read_bytes() == data
    with pytest.raises(ValueError, match="durability"):
        headrace.save(obj, tmp_path / "x.pt", durability="most")  # type: ignore[arg-type]
    only(tmp_path, "data.pt")


@pytest.mark.parametrize("setting", ["meta device", "float64", "meta context", "inference"])
def test_settings_of_torch_change_nothing(tmp_path: Path, setting: str) -> None:
    """safetensors #503, #582: a default device put tensors elsewhere."""
    code = """
        import sys, torch, headrace, contextlib, warnings
        warnings.simplefilter("ignore")
        path, setting = sys.argv[1:]
        obj = {"a": torch.arange(5.0), "s": torch.eye(3).to_sparse(), "c": torch.eye(3).to_sparse_csr(),
               "p": torch.nn.Parameter(torch.ones(4)), "e": torch.empty(0)}
        context = contextlib.nullcontext()
        if setting == "meta device": torch.set_default_device("meta")
        if setting == "float64": torch.set_default_dtype(torch.float64)
        if setting == "meta context": context = torch.device("meta")
        if setting == "inference": context = torch.inference_mode()
        with context:
            headrace.save(obj, path)
            loaded = [headrace.load(path, **how) for how in ({}, {"weights_only": False}, {"mmap": True})]
            if setting != "inference":
                target = {"a": torch.zeros(5, device="cpu", dtype=torch.float32)}
                headrace.save({"a": obj["a"]}, path + ".a.pt")
                headrace.load(path + ".a.pt", into=target)
                assert target["a"].tolist() == [0, 1, 2, 3, 4], target
            for one in loaded:
                for key, value in obj.items():
                    got = one[key]
                    facts = (got.dtype, got.device.type, got.layout)
                    assert facts == (value.dtype, "cpu", value.layout), (key, got)
                    if got.layout != torch.strided: got, value = got.to_dense(), value.to_dense()
                    assert torch.equal(got, value), key
    """
    done = run_script(code, str(tmp_path / "a.pt"), setting)
    assert done.returncode == 0, done.stderr


def test_what_torch_refuses_to_save_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    one = torch.zeros(8, dtype=torch.uint8)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for obj, error in (
        ({"a": one, "b": one.view(torch.float32)}, RuntimeError),
        (lambda: None, Exception),
        (deep, RecursionError),
        (sys._getframe(), TypeError),
    ):
        for container in CONTAINERS:
            with pytest.raises(error):
                headrace.save(obj, tmp_path / "a.pt", format=container)  # type: ignore[arg-type]
    only(tmp_path)
    while deep:
        deep = deep[0]


assert set(DTYPES) >= QUANTISED
