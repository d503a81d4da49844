# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""headrace convert: what torch and safetensors read of the result is what they read of the source."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, OrderedDict, defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from checkpoint_support import BITS, DTYPES, QUANTISED, assert_same, of_dtype, raw
from cli_support import done, flipped, measured, names, refusal, run_json, safetensors_file
from safetensors_support import CODES, by_hand, entry, tensor_of
from support import random_bytes

LEGACY = {"torch": False, "torch-legacy": True}
# torch warns of what it is going to drop, and of what it finds experimental.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
# Types without a storage class: torch.save writes them into a legacy file, and torch.load fails on it.
UNSIGNED = {"uint16", "uint32", "uint64"}
NOT_LEGACY = {n for n in DTYPES if n in BITS | UNSIGNED | {"complex32"} or n.startswith(("float8", "float4"))}


def save(obj: Any, path: Path, container: str = "torch") -> Path:
    torch.save(obj, path, _use_new_zipfile_serialization=not LEGACY[container])
    return path


def load(path: Path, weights_only: bool = True) -> Any:
    return torch.load(path, weights_only=weights_only)


def convert(source: Path, target: Path, *words: str) -> Path:
    result = run_json("convert", source, target, *words)
    assert result["target"] == str(target)
    return target


# Whole objects, from torch to torch.


def tied() -> dict[str, Any]:
    base = torch.arange(6.0)
    return {"a": base, "b": base, "view": base[2:4], "parameter": torch.nn.Parameter(base)}


def circle() -> list[Any]:
    one: list[Any] = [1]
    one.append({"self": one})
    return one


def optimizer() -> dict[str, Any]:
    layer = torch.nn.Linear(4, 3)
    adam = torch.optim.AdamW(layer.parameters(), amsgrad=True)
    layer(torch.ones(4)).sum().backward()
    adam.step()
    schedule = torch.optim.lr_scheduler.StepLR(adam, 3)
    return {"model": layer.state_dict(), "optimizer": adam.state_dict(), "schedule": schedule.state_dict()}


def deep() -> Any:
    value: Any = torch.ones(1)
    for i in range(300):
        value = [value] if i % 2 else {"k": value}
    return value


OBJECTS: dict[str, Any] = {
    "a tensor alone": lambda: torch.arange(5.0),
    "nothing": lambda: None,
    "an empty dict": dict,
    "numbers": lambda: [0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**62, 2**63, -(2**63), 10**300],
    "floats": lambda: [0.0, -0.0, 1.5, math.inf, -math.inf, 5e-324, 1.7976931348623157e308],
    "truth": lambda: [True, False, None, ..., 1, 0],
    "texts": lambda: ["", "a", "ünï", "x" * 300, "x" * 70_000, "\0", "same", "same", "\U0001f600"],
    "bytes": lambda: {"b": b"", "c": b"\x00\xff" * 200, "d": bytearray(b"mutable")},
    "tuples": lambda: [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((),)],
    "sets": lambda: {"set": {1, 2, 3}, "empty": set()},
    "keys of all kinds": lambda: {1: "i", "s": 2, (1, "t"): 3, None: 4, 2.5: 5, False: 6},
    "ordered": lambda: OrderedDict(b=1, a=torch.ones(2)),
    "counted": lambda: {"counter": Counter("hello"), "default": defaultdict(list, a=[1])},
    "sizes and types": lambda: [torch.Size([2, 3]), torch.Size([]), torch.float16, torch.int8, torch.bool],
    "devices": lambda: [torch.device("cpu"), torch.device("cuda", 1)],
    "tied": tied,
    "strided": lambda: [torch.arange(12.0).reshape(3, 4).t(), torch.arange(9)[::2], torch.ones(1).expand(3)],
    "empty and single": lambda: [torch.empty(0), torch.empty(2, 0, 3), torch.tensor(1), torch.tensor(True)],
    "gradients": lambda: [torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2), False)],
    "other signs": lambda: [
        torch.complex(torch.ones(2), torch.ones(2)).conj(),
        torch.complex(torch.ones(2), torch.ones(2)).conj().imag.clone(),
        torch._neg_view(torch.arange(3.0)),
    ],
    "sparse": lambda: [torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()],
    "quantised": lambda: [
        torch.quantize_per_tensor(torch.arange(4.0), 0.1, 3, torch.qint8),
        torch.quantize_per_channel(torch.ones(2, 3), torch.ones(2), torch.tensor([0, 1]), 0, torch.quint8),
    ],
    "meta": lambda: {"m": torch.empty(2, 3, device="meta")},
    "an optimizer": optimizer,
    "deep": deep,
    "shared containers": lambda: (lambda x: {"a": x, "b": x, "c": [x]})([1, torch.ones(1)]),
    "a circle": circle,
    "many": lambda: {f"key.{i}": i for i in range(3000)},
    "a thousand tensors": lambda: [torch.full((i % 7,), float(i)) for i in range(1000)],
}  # fmt: skip


@pytest.mark.parametrize("container", LEGACY)
@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_is_taken_over_as_a_whole(tmp_path: Path, kind: str, container: str) -> None:
    obj = OBJECTS[kind]()
    source = save(obj, tmp_path / "source.pt", container)
    # By way of the other container, and back: nothing is lost in either.
    other = next(name for name in LEGACY if name != container)
    there = convert(source, tmp_path / "there.pt", "--format", other)
    back = convert(there, tmp_path / "back.pt", "--format", container)
    expected = load(source, weights_only=False)
    for path in (there, back):
        found = load(path, weights_only=False)
        if kind == "a circle":
            assert found[1]["self"] is found
            assert found[0] == 1
            continue
        assert_same(found, expected)
        assert run_json("verify", path)["good"]
        try:
            load(source)
        except Exception:
            continue
        assert_same(load(path), expected)


def test_what_is_shared_stays_shared(tmp_path: Path) -> None:
    source = save(tied(), tmp_path / "source.pt")
    found = load(convert(source, tmp_path / "x.bin", "--format", "torch-legacy"))
    found = load(convert(tmp_path / "x.bin", tmp_path / "x.pt"))
    found["a"][2] = 77
    assert [found["b"][2], found["view"][0], found["parameter"][2]] == [77, 77, 77]
    box = [1]
    save({"a": box, "b": box}, tmp_path / "box.pt")
    found = load(convert(tmp_path / "box.pt", tmp_path / "box2.pt"))
    assert found["a"] is found["b"]


@pytest.mark.parametrize("container", LEGACY)
def test_every_type_of_torch_is_taken_over(tmp_path: Path, container: str) -> None:
    tensors = {n: of_dtype(n) for n in DTYPES if not (LEGACY[container] and n in NOT_LEGACY)}
    source = save(tensors, tmp_path / "source.pt", container)
    assert_same(load(convert(source, tmp_path / "there.pt")), load(source))
    legacy = save(
        {n: t for n, t in tensors.items() if n not in NOT_LEGACY}, tmp_path / "legacy.pt", container
    )
    assert_same(load(convert(legacy, tmp_path / "x.bin", "--format", "torch-legacy")), load(legacy))


@pytest.mark.parametrize("name", sorted(NOT_LEGACY - BITS))
def test_types_that_torch_cannot_load_from_a_legacy_file_are_refused(tmp_path: Path, name: str) -> None:
    source = save({"good": torch.ones(1), "bad": of_dtype(name)}, tmp_path / "source.pt")
    told = refusal("convert", source, tmp_path / "x.bin", "--format", "torch-legacy")
    assert "legacy format" in told
    flat = refusal("convert", source, tmp_path / "x.bin", "--format", "torch-legacy", "--tensors-only")
    assert "'bad'" in flat
    assert names(tmp_path) == ["source.pt"]


def random_object(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(14 if depth < 5 else 8)
    if kind == 0:
        name = dice.choice([n for n in DTYPES if n not in BITS | QUANTISED | NOT_LEGACY])
        return of_dtype(name)[dice.randrange(24) :]
    if kind == 1:
        return torch.randn(dice.randrange(1, 5), dice.randrange(1, 5)).t()
    if kind < 8:
        return dice.choice(
            [None, True, 7, -(2**70), 2.5, "text", b"bytes", torch.float32, torch.Size([1, 2])]
        )
    many = [random_object(dice, depth + 1) for _ in range(dice.randrange(6))]
    if kind < 11:
        return {dice.choice([f"k{i}", i, (i,)]): value for i, value in enumerate(many)}
    if kind == 11:
        return OrderedDict((str(i), value) for i, value in enumerate(many))
    return many if kind == 12 else tuple(many)


@pytest.mark.parametrize("seed", range(12))
def test_random_objects_are_taken_over(tmp_path: Path, seed: int) -> None:
    torch.manual_seed(seed)
    obj = {"first": torch.ones(3), "rest": [random_object(random.Random(seed * 100 + i)) for i in range(20)]}
    container = ("torch", "torch-legacy")[seed % 2]
    source = save(obj, tmp_path / "source.pt", container)
    there = convert(source, tmp_path / "there.pt", "--format", "torch")
    back = convert(there, tmp_path / "back.pt", "--format", "torch-legacy")
    again = convert(back, tmp_path / "again.pt")
    expected = load(source, weights_only=False)
    for path in (there, back, again):
        assert_same(load(path, weights_only=False), expected)


def later(obj: Any, path: Path, protocol: int, container: str) -> Path:
    torch.save(obj, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not LEGACY[container])
    return path


@pytest.mark.parametrize("container", LEGACY)
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_other_protocols_of_pickle_are_read(tmp_path: Path, protocol: int, container: str) -> None:
    base = torch.arange(6.0)
    obj = OrderedDict(
        w=base, view=base[2:], step=2**40, big=2**80, text="text" * 100, name="ü", nested=[(1, None)]
    )
    source = later(obj, tmp_path / "later.pt", protocol, container)
    here = save(obj, tmp_path / "two.pt", container)
    assert [t["name"] for t in run_json("inspect", source)["tensors"]] == ["w", "view"]
    assert "good" in done("verify", source)
    assert run_json("verify", source, "--against", here)["equal"]
    for target in LEGACY:
        found = load(convert(source, tmp_path / f"{target}.pt", "--format", target))
        assert_same(found, obj)
        assert type(found) is OrderedDict
        assert found["view"].data_ptr() == found["w"].data_ptr() + 8


@pytest.mark.parametrize("container", LEGACY)
def test_opcodes_that_are_not_read_are_no_damage(tmp_path: Path, container: str) -> None:
    for protocol, held in ((3, b"bytes"), (4, {1, 2}), (5, frozenset({1})), (5, bytearray(b"b"))):
        source = later({"w": torch.ones(1), "held": held}, tmp_path / "later.pt", protocol, container)
        for words in (("inspect", source), ("verify", source), ("convert", source, tmp_path / "x.pt")):
            assert "is not read: only those are that Python writes" in refusal(*words, code=1)


class Point:
    def __init__(self, x: Any) -> None:
        self.x = x


def test_objects_of_classes_of_ones_own_are_taken_over_unseen(tmp_path: Path) -> None:
    source = save({"p": Point(torch.ones(2)), "w": torch.zeros(1)}, tmp_path / "source.pt")
    for target in LEGACY:
        found = load(convert(source, tmp_path / f"{target}.pt", "--format", target), weights_only=False)
        assert type(found["p"]) is Point
        assert_same(found["p"].x, torch.ones(2))


def test_one_storage_seen_as_two_types_cannot_go_into_a_legacy_file(tmp_path: Path) -> None:
    # torch.save refuses to write one; a file of before it did, or of another writer, is made from two.
    words = torch.arange(4, dtype=torch.int32)
    source = save({"a": words, "b": words.clone().view(torch.float32)}, tmp_path / "source.pt")
    assert_same(load(convert(source, tmp_path / "x.bin", "--format", "torch-legacy")), load(source))


# Tensors, between torch and safetensors.


SHARED = [n for n in CODES if n in DTYPES]


@pytest.fixture
def state() -> dict[str, Any]:
    base = torch.arange(12.0)
    tensors = {f"of.{n}": tensor_of(n, 6, 4) for n in SHARED}
    tensors |= {
        "tied": base,
        "tied.too": base,
        "turned": base.reshape(3, 4).t(),
        "view": base[2:7],
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 3),
        "conjugate": torch.complex(base, base).conj(),
        "ünï": torch.ones(1),
        "": torch.zeros(1),
        "repeated": torch.ones(1).expand(3, 2),
    }
    return tensors


def plain(tensor: Any) -> Any:
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def check_tensors(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert raw(found[name]) == raw(plain(tensor)), name


@pytest.mark.parametrize("container", LEGACY)
def test_a_state_dict_becomes_a_file_that_safetensors_itself_opens(
    tmp_path: Path, state: dict[str, Any], container: str, package: Any
) -> None:
    if LEGACY[container]:
        state = {n: t for n, t in state.items() if str(t.dtype).removeprefix("torch.") not in NOT_LEGACY}
    source = save(state, tmp_path / "source.pt", container)
    target = convert(source, tmp_path / "x.safetensors")
    found = package.load_file(target)
    check_tensors(found, state)
    # And back, byte for byte.
    for back in LEGACY if not NOT_LEGACY & {str(t.dtype)[6:] for t in state.values()} else ["torch"]:
        again = load(convert(target, tmp_path / f"{back}.pt", "--format", back))
        check_tensors(again, state)
        assert run_json("verify", source, "--against", tmp_path / f"{back}.pt")["compared_tensors"] == len(
            state
        )


def test_the_file_is_the_one_that_safetensors_would_have_written(tmp_path: Path, package: Any) -> None:
    tensors = {f"of.{n}": tensor_of(n, 3, 4) for n in SHARED if n != "float4_e2m1fn_x2"}
    package.save_file(tensors, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    source = save(tensors, tmp_path / "source.pt")
    ours = convert(source, tmp_path / "ours.safetensors")
    assert ours.read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_safetensors_to_safetensors_keeps_every_byte_and_the_metadata(tmp_path: Path) -> None:
    source = safetensors_file(
        tmp_path / "x.safetensors",
        {"b": ("U8", [3], b"abc"), "a": ("F64", [1], bytes(8))},
        key="välue",
        other="",
    )
    target = convert(source, tmp_path / "y.safetensors")
    assert run_json("inspect", target)["files"][0]["metadata"] == {"key": "välue", "other": ""}
    assert run_json("verify", source, "--against", target)["equal"]


def test_metadata_that_torch_has_no_place_for_is_told(tmp_path: Path) -> None:
    source = safetensors_file(tmp_path / "x.safetensors", {"b": ("U8", [3], b"abc")}, key="value", other="x")
    (note,) = run_json("convert", source, tmp_path / "x.pt")["notes"]
    assert "metadata" in note
    assert "key" in note
    # What transformers and convert itself write says nothing that would be missed.
    source = safetensors_file(tmp_path / "y.safetensors", {"b": ("U8", [3], b"abc")}, format="pt")
    assert run_json("convert", source, tmp_path / "y.pt")["notes"] == []


def test_tied_tensors_are_written_once_in_torch_files_and_each_in_safetensors(tmp_path: Path) -> None:
    base = torch.arange(10_000.0)
    source = save({"a": base, "b": base, "c": base[:5000]}, tmp_path / "source.pt")
    flat = convert(source, tmp_path / "flat.pt", "--tensors-only")
    assert flat.stat().st_size < 100_000
    found = load(flat)
    assert found["a"].data_ptr() == found["b"].data_ptr()
    assert convert(source, tmp_path / "x.safetensors").stat().st_size > 100_000


def test_types_that_the_other_format_lacks_are_refused_by_name(tmp_path: Path) -> None:
    for name in ("complex32", "complex128", "qint8"):
        if name not in DTYPES:
            continue
        source = save({"good": torch.ones(1), "bad": of_dtype(name)}, tmp_path / f"{name}.pt")
        told = refusal("convert", source, tmp_path / "x.safetensors")
        assert "'bad'" in told
    path = by_hand(tmp_path / "f6.safetensors", {"six": entry("F6_E2M3", [4], 0, 3)}, bytes(3))
    assert "'six'" in refusal("convert", path, tmp_path / "x.pt")
    assert convert(path, tmp_path / "y.safetensors").stat().st_size
    assert "x.pt" not in names(tmp_path)


def test_packed_halves_keep_their_bytes_and_change_their_shape(tmp_path: Path) -> None:
    data = random_bytes(12)
    path = by_hand(tmp_path / "f4.safetensors", {"w": entry("F4", [3, 8], 0, 12)}, data)
    there = convert(path, tmp_path / "x.pt")
    told = run_json("inspect", there)["tensors"][0]
    assert (told["dtype"], told["shape"], told["bytes"]) == ("float4_e2m1fn_x2", [3, 4], 12)
    back = convert(there, tmp_path / "back.safetensors")
    assert run_json("verify", path, "--against", back)["equal"]
    assert run_json("verify", path, "--against", there)["equal"]
    odd = by_hand(tmp_path / "odd.safetensors", {"w": entry("F4", [2, 3], 0, 3)}, bytes(3))
    assert "whole number of bytes" in refusal("convert", odd, tmp_path / "odd.pt")


def test_what_is_no_tensor_is_never_lost_without_a_word(tmp_path: Path) -> None:
    source = save(
        {"w": torch.ones(2), "step": 7, "nested": {"lr": 0.5, "deep": [None, torch.ones(1)]}},
        tmp_path / "x.pt",
    )
    told = refusal("convert", source, tmp_path / "x.safetensors")
    assert "'step' = 7" in told
    assert "--tensors-only" in told
    result = run_json("convert", source, tmp_path / "x.safetensors", "--tensors-only")
    assert "3 values that are no tensors" in result["notes"][0]
    assert set(by_name(tmp_path / "x.safetensors")) == {"w", "nested.deep.1"}
    result = run_json("convert", source, tmp_path / "y.safetensors", "--select", "w")
    assert result["notes"] == []


def test_two_tensors_of_one_name_are_no_fault_of_an_object(tmp_path: Path) -> None:
    source = save({"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1), 0: torch.ones(2)}, tmp_path / "x.pt")
    (problem,) = run_json("verify", source)["problems"]
    assert (problem["severity"], problem["tensor"]) == ("warning", "a.b")
    assert run_json("inspect", source)["problems"] == [problem]
    for container, legacy in LEGACY.items():
        there = tmp_path / f"y-{legacy}.pt"
        convert(source, there, "--format", container)
        assert_same(load(there), load(source))
    assert "would both be called 'a.b'" in refusal("convert", source, tmp_path / "z.safetensors", code=1)


def test_what_was_not_looked_into_for_a_selection_is_told(tmp_path: Path) -> None:
    part = {"weight": torch.ones(2)}
    module = torch.nn.Linear(2, 2)
    source = save({"model": part, "ema": part, "net": module, "args": Fraction(1, 2)}, tmp_path / "x.pt")
    notes = run_json("convert", source, tmp_path / "y.safetensors", "--select", "*weight")["notes"]
    assert [note.partition(",")[0] for note in notes] == [
        f"not looked into: '{n}'" for n in ("ema", "net", "args")
    ]
    source = save({"model": part, "args": Fraction(1, 2)}, tmp_path / "z.pt")
    assert run_json("convert", source, tmp_path / "z.safetensors", "--select", "*weight")["notes"] == []


def test_tensors_under_two_names_are_not_lost_without_a_word(tmp_path: Path) -> None:
    weights = {"w": torch.ones(2)}
    source = save({"model": weights, "average": weights}, tmp_path / "x.pt")
    told = refusal("convert", source, tmp_path / "x.safetensors")
    assert "'average' = what stands under another name too" in told
    assert "average" in run_json("convert", source, tmp_path / "x.safetensors", "--tensors-only")["notes"][0]
    assert_same(load(convert(source, tmp_path / "y.pt")), load(source))


def test_names_that_cannot_be_told_whole_are_refused(tmp_path: Path) -> None:
    source = save({"a" * 3000: {"b" * 3000: torch.ones(1)}, "ok": torch.ones(1)}, tmp_path / "x.pt")
    assert "longer than can be told" in refusal("convert", source, tmp_path / "x.safetensors")
    assert set(by_name(convert(source, tmp_path / "ok.safetensors", "--select", "ok"))) == {"ok"}


def by_name(path: Path) -> dict[str, Any]:
    return {t["name"]: t for t in run_json("inspect", path)["tensors"]}


def test_a_training_state_becomes_its_weights(tmp_path: Path, package: Any) -> None:
    state = optimizer()
    source = save(state, tmp_path / "train.pt")
    target = convert(source, tmp_path / "w.safetensors", "--select", "model.*", "--rename", r"^model\.=")
    check_tensors(package.load_file(target), state["model"])


# Shards.


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_shards_and_their_index_are_as_transformers_reads_them(
    tmp_path: Path, form: str, package: Any, state: dict[str, Any]
) -> None:
    source = save(state, tmp_path / "source.pt")
    folder = convert(source, tmp_path / "shards", "--shard-size", "150", "--format", form)
    start = {"safetensors": ("model", "safetensors"), "torch": ("pytorch_model", "bin")}[form]
    index = json.loads((folder / f"{start[0]}.{start[1]}.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    count = len(files)
    assert files == [f"{start[0]}-{i:05}-of-{count:05}.{start[1]}" for i in range(1, count + 1)]
    assert names(folder) == sorted([*files, f"{start[0]}.{start[1]}.index.json"])
    found: dict[str, Any] = {}
    for file in files:
        part = package.load_file(folder / file) if form == "safetensors" else load(folder / file)
        assert set(part) == {n for n, f in index["weight_map"].items() if f == file}
        assert len(part) == 1 or sum(len(raw(t)) for t in part.values()) <= 150
        found |= part
    check_tensors(found, state)
    assert index["metadata"]["total_size"] == sum(len(raw(plain(t))) for t in state.values())
    assert run_json("verify", folder)["problems"] == []
    # Put together again.
    one = convert(folder, tmp_path / "one.safetensors")
    check_tensors(package.load_file(one), state)


@pytest.mark.parametrize(
    ("size", "shards"),
    [
        (1, [["a"], ["b"], ["c", "d"]]),
        (9, [["a"], ["b"], ["c", "d"]]),
        (10, [["a"], ["b"], ["c", "d"]]),
        (12, [["a"], ["b", "c", "d"]]),
        (13, [["a", "b"], ["c", "d"]]),
        (24, [["a", "b", "c", "d"]]),
        (23, [["a", "b"], ["c", "d"]]),
        (22, [["a", "b"], ["c", "d"]]),
    ],
)
def test_a_shard_holds_what_fits_and_no_more(tmp_path: Path, size: int, shards: list[list[str]]) -> None:
    sizes = {"a": 10, "b": 3, "c": 10, "d": 0} if size in (9, 10, 13) else {"a": 12, "b": 1, "c": 11, "d": 0}
    source = safetensors_file(
        tmp_path / "x.safetensors", {n: ("U8", [s], n.encode() * s) for n, s in sizes.items()}
    )
    result = run_json("convert", source, tmp_path / "out", "--shard-size", str(size))
    assert [sorted(by_name(Path(f))) for f in result["files"]] == shards
    assert (result["index"] is None) == (len(shards) == 1)
    assert result["tensors"] == 4


def test_one_shard_is_one_file_without_an_index(tmp_path: Path) -> None:
    source = safetensors_file(tmp_path / "x.safetensors", {"w": ("U8", [3], b"abc")})
    done("convert", source, tmp_path / "out", "--shard-size", "5GB")
    assert names(tmp_path / "out") == ["model.safetensors"]


# Damage.


@pytest.mark.parametrize(
    "words",
    [
        "a.safetensors",
        "a.pt",
        "a.pt --format torch-legacy",
        "a.pt --dtype bfloat16",
        "folder --shard-size 4KB",
        "a.safetensors --select last",
    ],
)
@pytest.mark.parametrize("shape", ["alone", "slices", "backwards", "strided"])
def test_damage_is_not_written_on(tmp_path: Path, words: str, shape: str) -> None:
    base = torch.arange(4096.0)
    views = {"alone": lambda i: base[512 * i :][:512].clone(), "slices": lambda i: base[512 * i :][:512],
             "backwards": lambda i: base[512 * (7 - i) :][:512], "strided": lambda i: base[i::8]}  # fmt: skip
    tensors = {("last" if i == 7 else f"t{i}"): views[shape](i) for i in range(8)}
    source = save(tensors, tmp_path / "in.pt")
    (last,) = run_json("inspect", source, "--filter", "last")["tensors"]
    damaged = flipped(source, last["offset_bytes"] + 2, tmp_path / "damaged.pt")
    out = tmp_path / "out"
    out.mkdir()
    target, *options = words.split()
    told = refusal("convert", damaged, out / target, *options, code=3)
    assert "the CRC-32 of storage" in told
    assert "--no-verify" in told
    assert names(out) == []
    result = run_json("convert", damaged, out / target, *options, "--no-verify")
    assert result["tensors"] == (1 if "--select" in options else 8)
    assert result["read_bytes"] >= result["tensors"] * 2048


def test_the_rate_is_that_of_what_was_read(tmp_path: Path) -> None:
    source = save({f"t{i}": torch.full((1000,), float(i)) for i in range(10)}, tmp_path / "in.pt")
    result = run_json("convert", source, tmp_path / "a.safetensors", "--select", "t3")
    assert result["read_bytes"] == 4000
    assert result["source_bytes"] == source.stat().st_size
    assert "1 tensor, 4.10 KB written from 4.00 KB" in done(
        "convert", source, tmp_path / "b.safetensors", "--select", "t3"
    )


def test_files_beside_a_checkpoint_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    save({"w": torch.ones(3)}, folder / "optim.pt")
    safetensors_file(folder / "model.safetensors", {"w": ("F32", [1], b"abcd")})
    note = f"{folder}/optim.pt: in the same folder, and no part of this checkpoint: not looked at"
    assert f"note: {note}" in done("inspect", folder)
    assert f"note: {note}" in done("verify", folder)
    assert run_json("convert", folder, tmp_path / "x.pt")["notes"][0] == note
    assert len(run_json("inspect", folder)["tensors"]) == 1


def test_a_legacy_file_that_lost_its_places_is_not_written_on(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(512.0), "b": torch.ones(512)}
    source = save(tensors, tmp_path / "x.bin", "torch-legacy")
    data = source.read_bytes()
    first = min(data.index(bytes(tensor.numpy().data)) for tensor in tensors.values())
    source.write_bytes(data[: first + 512] + bytes(8) + data[first + 512 :])
    assert run_json("verify", source, code=3)["good"] is False
    for target, *words in (("x.pt",), ("x.safetensors",), ("y.pt", "--dtype", "float16")):
        assert "elements" in refusal("convert", source, tmp_path / target, *words, code=3)
    assert names(tmp_path) == ["x.bin"]
    convert(source, tmp_path / "x.pt", "--no-verify")


@pytest.mark.parametrize("shape", [[2**63, 0], [0, 2**40, 2**40]])
def test_a_shape_without_elements_that_torch_cannot_say_is_refused(tmp_path: Path, shape: list[int]) -> None:
    path = by_hand(tmp_path / "x.safetensors", {"w": entry("F32", shape, 0, 0)}, b"")
    for container in LEGACY:
        told = refusal("convert", path, tmp_path / "x.pt", "--format", container)
        assert "no strides" in told
    assert names(tmp_path) == ["x.safetensors"]


def test_names_that_are_no_utf8_are_refused_where_an_index_is_to_hold_them(tmp_path: Path) -> None:
    source = save({"\ud800": torch.ones(4), "b": torch.ones(4)}, tmp_path / "x.pt")
    words = ("--format", "torch", "--shard-size", "16")
    assert "not UTF-8" in refusal("convert", source, tmp_path / "shards", *words)
    assert names(tmp_path) == ["x.pt"]
    convert(source, tmp_path / "y.pt")


def test_an_index_of_many_tensors_is_written_in_no_time(tmp_path: Path) -> None:
    each = {f"layer.{i}": entry("U8", [1], i, i + 1) for i in range(100_000)}
    source = by_hand(tmp_path / "x.safetensors", each, bytes(100_000))
    code, _, seconds = measured("convert", source, tmp_path / "shards", "--shard-size", "60000")
    assert code == 0
    assert seconds < 30  # some 2; it was a minute when each name was looked for among all before it
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    assert len(index["weight_map"]) == 100_000
