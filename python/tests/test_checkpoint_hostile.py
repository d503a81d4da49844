# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""Damaged and hostile checkpoints: an exception that says what is wrong; no crash, no hang, little memory."""

from __future__ import annotations

import json
import pickle
import struct
import textwrap
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
from checkpoint_support import assert_same
from support import run_script

FORMATS = ["torch", "torch-legacy", "safetensors"]
# Runs in a process of its own: a crash is seen as one, and what it takes of memory too.
CHECK = f"""
    import faulthandler, json, os, pickle, random, sys, warnings
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    warnings.simplefilter("ignore")
    import torch, headrace
    from checkpoint_support import assert_same
    faulthandler.enable()
    torch.set_num_threads(1)
    TOLD = (headrace.FormatError, headrace.UnavailableError, headrace.EndOfFileError, pickle.UnpicklingError)

    def peak():
        return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) << 10

    def check(path, data, *, legacy, **arguments):
        # The object, or the exception that told what is wrong.
        with open(path, "wb") as file:
            file.write(data)
        faulthandler.dump_traceback_later(20, exit=True)
        try:
            return headrace.load(path, **arguments)
        except TOLD as reason:
            assert str(reason), data
            return reason
        except (RuntimeError, ValueError, TypeError) as reason:
            # Of torch and Python, for texts in a pickle without a sum: a device, say, that is none.
            assert legacy, (type(reason), reason)
            assert str(reason)
            return reason
        finally:
            faulthandler.cancel_dump_traceback_later()
"""


def check(code: str, *arguments: str, timeout: float = 100) -> str:
    done = run_script(textwrap.dedent(CHECK) + textwrap.dedent(code), *arguments, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-500:]
    return done.stdout


def small() -> dict[str, Any]:
    return {
        "w": torch.arange(10.0),
        "view": torch.ones(6)[1:3],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "step": 7,
        "lr": 0.125,
        "name": "hello",
        "sparse": torch.eye(2).to_sparse(),
        "none": None,
        "ints": [1, 300, 70_000, 2**40, 10**30],
    }


def make(path: Path, container: Any) -> bytes:
    obj: Any = small()
    if container == "safetensors":
        obj = {"w": torch.arange(10.0), "v": torch.ones(3, 4, dtype=torch.int8), "e": torch.empty(0)}
    headrace.save(obj, path, format=container, **({"alignment": 64} if container == "torch" else {}))
    return path.read_bytes()


@pytest.mark.watchdog(120)
@pytest.mark.parametrize("container", FORMATS)
def test_every_flipped_byte_and_every_cut_is_survived(tmp_path: Path, container: str) -> None:
    make(tmp_path / "good", container)
    out = check(
        """
        good, path, container = sys.argv[1:]
        data = open(good, "rb").read()
        obj = headrace.load(good)
        wrong = []
        before = peak()
        for i in range(len(data)):
            for flip in (1 << i % 8, 0xff)[: 1 + (i % 3 == 0)]:
                bad = bytearray(data)
                bad[i] ^= flip
                result = check(path, bad, legacy=container != "torch")
                if not isinstance(result, Exception):
                    try:
                        assert_same(obj, result)
                    except AssertionError:
                        wrong.append(i)
            assert isinstance(check(path, data[:i], legacy=False), Exception), i
        if container == "torch":
            assert not wrong, wrong
        assert peak() < before + (64 << 20)
        print(len(data))
        """,
        str(tmp_path / "good"),
        str(tmp_path / "bad"),
        container,
    )
    assert int(out) > 200


@pytest.mark.watchdog(120)
@pytest.mark.parametrize("container", FORMATS)
def test_thousands_of_mutations_are_survived(tmp_path: Path, container: str) -> None:
    """Sums are mended in half of them, so that what lies behind the sums is reached."""
    make(tmp_path / "good", container)
    check(
        """
        import io, zipfile
        good, path, container, count = sys.argv[1:]
        data = open(good, "rb").read()
        before = peak()
        randomly = random.Random(11)
        ok = 0

        def mutate(text):
            text = bytearray(text)
            for _ in range(randomly.choice((1, 1, 2, 4, 16))):
                at = randomly.randrange(len(text) + 1)
                kind = randomly.randrange(6)
                if kind == 0 and at < len(text): text[at] = randomly.randrange(256)
                elif kind == 1: text[at:at] = randomly.randbytes(randomly.choice((1, 2, 8)))
                elif kind == 2: del text[at:at + randomly.choice((1, 4, 16))]
                elif kind == 3:
                    value = randomly.choice((0, 1, 127, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1))
                    size = randomly.choice((1, 2, 4, 8))
                    text[at:at + size] = (value & (256**size - 1)).to_bytes(size, "little")
                elif kind == 4:
                    other = randomly.randrange(len(text) + 1)
                    text[at:at] = text[other:other + randomly.choice((4, 20, 60))]
                else: text[at:at + 1] = bytes([randomly.choice(b".RbQt(\\x86\\x81su]}")])
            return bytes(text)

        for i in range(int(count)):
            if container == "torch" and i % 2:
                mended = io.BytesIO()
                with zipfile.ZipFile(good) as source, zipfile.ZipFile(mended, "w") as target:
                    for record in source.infolist():
                        content = source.read(record)
                        if record.filename.endswith("data.pkl"): content = mutate(content)
                        target.writestr(record.filename, content)
                bad = mended.getvalue()
            else:
                bad = mutate(data)
            arguments = ({}, {}, {"mmap": True}, {"verify": "off"}, {"map_location": "meta"})[i % 5]
            result = check(path, bad, legacy=True, **arguments)
            ok += not isinstance(result, Exception)
            repr(result)[:100]
        assert peak() < before + (128 << 20), (before, peak())
        print(ok)
        """,
        str(tmp_path / "good"),
        str(tmp_path / "bad"),
        container,
        "2000",
    )


def test_a_flipped_bit_of_the_data_names_the_tensor_and_off_loads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    obj = {"model": {"first": torch.zeros(10), "second": torch.zeros(70_000), "third": torch.zeros(20_000)}}
    headrace.save(obj, path)
    good = path.read_bytes()
    with headrace.open(path):
        pass
    for name, record in (("first", "data/0"), ("second", "data/1"), ("third", "data/2")):
        bad = bytearray(good)
        with zipfile.ZipFile(path) as archive:
            header = archive.getinfo(f"a/{record}").header_offset
        begin = header + 30 + sum(struct.unpack_from("<HH", good, header + 26))
        bad[begin + 17] ^= 4
        (tmp_path / "bad.pt").write_bytes(bad)
        for arguments in ({}, {"verify": "require"}, {"weights_only": False}, {"into": {"model": {
            key: torch.ones_like(value) for key, value in obj["model"].items()}}}):  # fmt: skip
            with pytest.raises(headrace.FormatError, match=rf"'model.{name}'.*CRC-32") as caught:
                headrace.load(tmp_path / "bad.pt", **arguments)  # type: ignore[arg-type]
            assert caught.value.filename == tmp_path / "bad.pt"
            assert caught.value.offset == begin
        loaded = headrace.load(tmp_path / "bad.pt", verify="off")
        assert int((loaded["model"][name] != 0).sum()) == 1
        assert isinstance(headrace.load(tmp_path / "bad.pt", mmap=True), dict)


@pytest.mark.parametrize("what", ["step", "lr", "name"])
def test_a_flipped_bit_of_the_pickle_is_found(tmp_path: Path, what: str) -> None:
    """Numbers and texts are in the pickle, and so is where tensors lie."""
    path = tmp_path / "a.pt"
    headrace.save({"step": 7, "lr": 0.125, "name": "hello", "w": torch.ones(3)}, path)
    data = path.read_bytes()
    part = {"step": b"stepK\x07", "lr": b"lrG\x3f\xc0", "name": b"hello"}[what]
    at = data.index(part) + len(part) - 1
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for arguments in ({}, {"verify": "require"}, {"weights_only": False}, {"mmap": True}):
        with pytest.raises(headrace.FormatError, match=r"data\.pkl.*CRC-32|CRC-32.*data\.pkl"):
            headrace.load(path, **arguments)  # type: ignore[arg-type]
    with pytest.raises(headrace.FormatError):
        headrace.open(path)
    assert headrace.load(path, verify="off")["w"].tolist() == [1, 1, 1]


def archive(path: Path, text: bytes, records: dict[str, bytes] | None = None) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {
            "data.pkl": text,
            "version": b"3\n",
            "byteorder": b"little",
            **(records or {}),
        }.items():
            file.writestr(f"a/{name}", content)


def long(number: int) -> bytes:
    data = number.to_bytes(8, "little", signed=True)
    return b"\x8a\x08" + data


def tensor(
    offset: int, shape: list[int], strides: list[int], numel: int = 4, kind: bytes = b"FloatStorage"
) -> bytes:
    """The pickle of a tensor that views storage 0 as it is told."""
    return b"".join([
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n", kind,
        b"\nX\x01\0\0\x000X\x03\0\0\0cpu",
        long(numel), b"tQ", long(offset), b"(", *map(long, shape), b"t(", *map(long, strides),
        b"t\x89ccollections\nOrderedDict\n)RtR.",
    ])  # fmt: skip


DOUBLED = b"K\x01\x85q\0" + b"".join(b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(60))
PICKLES = {
    "a tuple in a tuple, and so on, as a key": b"\x80\x02})" + b"\x85" * 1_000_000 + b"K\x01s.",
    "a key that takes for ever to hash": b"\x80\x02}" + DOUBLED + b"K\x01s.",
    "a set of what takes for ever to hash": b"\x80\x02c__builtin__\nset\n]" + DOUBLED + b"a\x85R.",
    "8 GiB of zeros": b"\x80\x02c__builtin__\nbytearray\n" + long(1 << 33) + b"\x85R.",
    "sets of one list again and again": b"\x80\x02cbuiltins\nset\nq\x00](" + b"N" * 20_000 + b"e\x85q\x01R"
    + b"h\0h\x01R" * 20_000 + b".",
    "a text of 4 GiB": b"\x80\x02X\xff\xff\xff\xff.",
    "nothing": b"",
    "no end": b"\x80\x02]" * 1000,
    "an opcode of protocol 4": b"\x80\x04\x95\0\0\0\0\0\0\0\0N.",
    "eval": b"\x80\x02c__builtin__\neval\nX\x01\0\0\x001\x85R.",
    "os.system": b"\x80\x02cposix\nsystem\nX\x04\0\0\0true\x85R.",
    "a storage that is not there": tensor(0, [4], [1]).replace(b"X\x01\0\0\x000", b"X\x01\0\0\x009"),
    "more elements than the record has": tensor(0, [4], [1], numel=5),
    "2**62 elements": tensor(0, [4], [1], numel=1 << 62),
    "a view behind the end": tensor(1, [4], [1]),
    "a view far behind the end": tensor((1 << 63) - 1, [4], [1]),
    "a negative offset": tensor(-1, [4], [1]),
    "negative strides": tensor(3, [4], [-1]),
    "a negative size": tensor(0, [-1], [1]),
    "strides that overflow": tensor(0, [3, 3], [(1 << 62), (1 << 62)]),
    "sizes that overflow": tensor(0, [1 << 40, 1 << 40], [1, 1]),
    "65 dimensions": tensor(0, [1] * 65, [1] * 65),
    "fewer strides than sizes": tensor(0, [2, 2], [1]),
    "bytes called doubles": tensor(0, [4], [1], kind=b"DoubleStorage"),
    "an unknown storage": tensor(0, [4], [1], kind=b"EvilStorage"),
    "a call of nothing": b"\x80\x02N)R.",
    "a state for a dict": b"\x80\x02}}b.",
    "a persistent id that is text": b"\x80\x02X\x01\0\0\x000Q.",
}  # fmt: skip


def test_hostile_pickles_are_refused_at_once_and_for_little_memory(tmp_path: Path) -> None:
    for i, text in enumerate(PICKLES.values()):
        archive(tmp_path / f"{i}.pt", text, {"data/0": bytes(16)})
    check(
        """
        folder, *names = sys.argv[1:]
        for i, name in enumerate(names):
            print(name, flush=True)  # seen if it ends the process
            before = peak()
            path = f"{folder}/{i}.pt"
            data = open(path, "rb").read()
            for arguments in ({}, {"weights_only": False}, {"mmap": True}):
                # With weights_only=False names are looked up and called: the file is trusted.
                if not arguments.get("weights_only", True) and name in TRUSTED: continue
                result = check(path, data, legacy=False, **arguments)
                assert isinstance(result, Exception), (name, result)
            assert peak() < before + (96 << 20), (name, peak() - before)
        """.replace("TRUSTED", repr(["eval", "os.system", "an unknown storage", "an opcode of protocol 4"])),
        str(tmp_path),
        *PICKLES,
    )


def test_deep_nests_and_far_memo_entries_that_harm_nobody_load(tmp_path: Path) -> None:
    texts = (
        b"]" * 500_000 + b"a" * 499_999,
        b")" + b"\x85" * 500_000,
        b"}K\x01" * 200_000 + b"N" + b"s" * 200_000,
        b"Nr\xff\xff\xff\xff",
    )
    for i, text in enumerate(texts):
        archive(tmp_path / f"{i}.pt", b"\x80\x02" + text + b".")
    check(
        """
        before = peak()
        for i in range(4):
            path = f"{sys.argv[1]}/{i}.pt"
            assert not isinstance(check(path, open(path, "rb").read(), legacy=False), Exception), i
        assert peak() < before + (256 << 20), peak() - before
        """,
        str(tmp_path),
    )


def test_a_bomb_of_compressed_zeros_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/data.pkl", bytes(200 << 20))
        file.writestr("a/version", b"3\n")
    check(
        """
        before = peak()
        result = check(sys.argv[1], open(sys.argv[1], "rb").read(), legacy=False)
        assert isinstance(result, headrace.UnavailableError)
        assert peak() < before + (32 << 20)
        """,
        str(tmp_path / "a.pt"),
    )


def entry_of(data: bytes, name: str) -> int:
    """Where the entry of the zip directory is."""
    at = data.index(b"PK\x01\x02")
    while True:
        names, extra, comment = struct.unpack_from("<HHH", data, at + 28)
        if data[at + 46 : at + 46 + names].decode() == name:
            return at
        at = data.index(b"PK\x01\x02", at + 46 + names + extra + comment)


LIES = {
    "a size of 2**31": ("<I", 24, 1 << 31),
    "one byte more": ("<I", 24, 401),
    "one byte less": ("<I", 24, 399),
    "a place behind the end": ("<I", 42, 1 << 30),
    "the place of another record": ("<I", 42, 0),
    "sizes in a field that is not there": ("<I", 24, 0xFFFFFFFF),
    "a place in a field that is not there": ("<I", 42, 0xFFFFFFFF),
    "encrypted": ("<H", 8, 0x0809),
    "compressed": ("<H", 10, 8),
    "a longer name": ("<H", 28, 60_000),
    "a longer comment": ("<H", 32, 60_000),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_zip_directory_that_lies_is_found_out(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "a.pt"
    headrace.save({"a": torch.arange(100.0), "b": torch.ones(50)}, path)
    data = bytearray(path.read_bytes())
    form, offset, value = LIES[lie]
    struct.pack_into(form, data, entry_of(data, "a/data/0") + offset, value)
    if offset == 24:
        struct.pack_into(form, data, entry_of(data, "a/data/0") + 20, value)
    path.write_bytes(data)
    for arguments in ({}, {"mmap": True}, {"verify": "off"}, {"weights_only": False}):
        with pytest.raises((headrace.FormatError, headrace.UnavailableError), match=r"."):
            headrace.load(path, **arguments)  # type: ignore[arg-type]


def test_two_records_of_one_name_and_records_that_overlap_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.arange(100.0), "b": torch.ones(100)}, path)
    good = path.read_bytes()
    twice = good.replace(b"a/data/1", b"a/data/0")
    path.write_bytes(twice)
    with pytest.raises(headrace.FormatError, match="twice"):
        headrace.load(path)
    # Both entries point to the same record: many tensors out of few bytes.
    data = bytearray(good)
    begin = struct.unpack_from("<I", data, entry_of(data, "a/data/0") + 42)[0]
    struct.pack_into("<I", data, entry_of(data, "a/data/1") + 42, begin)
    path.write_bytes(data)
    with pytest.raises(headrace.FormatError):
        headrace.load(path)


HEADERS: dict[str, Any] = {
    "a range behind the end": {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}},
    "a shape larger than its range": {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
    "sizes that overflow": {"a": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 8]}},
    "ranges that overlap": {"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
                            "b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}},
    "a gap": {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
              "b": {"dtype": "U8", "shape": [2], "data_offsets": [6, 8]}},
    "an end before its begin": {"a": {"dtype": "U8", "shape": [0], "data_offsets": [8, 0]}},
    "a negative size": {"a": {"dtype": "U8", "shape": [-8], "data_offsets": [0, 8]}},
    "a size that is no whole number": {"a": {"dtype": "U8", "shape": [8.5], "data_offsets": [0, 8]}},
    "an unknown dtype": {"a": {"dtype": "X9", "shape": [8], "data_offsets": [0, 8]}},
    "a list": [1, 2],
    "a deep nest": {"a": json.loads("[" * 400 + "]" * 400)},
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_hostile_safetensors_headers_are_refused(tmp_path: Path, name: str) -> None:
    head = json.dumps(HEADERS[name]).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(8))
    for arguments in ({}, {"mmap": True}, {"verify": "off"}, {"into": {"a": torch.ones(2)}}):
        with pytest.raises(headrace.FormatError, match=r"."):
            headrace.load(path, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, 1, 7, 2**31, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
def test_lengths_that_lie_take_no_memory(tmp_path: Path, length: int) -> None:
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", length) + b'{"a":1}' + bytes(50))
    legacy = make(tmp_path / "legacy.pt", "torch-legacy")
    # The count in front of the first storage, which the pickle says too.
    keys = legacy.rindex(b"e.") + 2
    (tmp_path / "legacy.pt").write_bytes(legacy[:keys] + struct.pack("<Q", length) + legacy[keys + 8 :])
    for name in ("a.safetensors", "legacy.pt"):
        with pytest.raises(headrace.FormatError):
            headrace.load(tmp_path / name)


def test_a_deep_json_nest_ends_no_process(tmp_path: Path) -> None:
    texts = (b'{"a":' + b"[" * 1_000_000, b'{"a":' * 1_000_000, b'{"__metadata__":' + b"{" * 1_000_000)
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    check(
        """
        for i in range(3):
            path = f"{sys.argv[1]}/{i}.safetensors"
            assert isinstance(check(path, open(path, "rb").read(), legacy=False), Exception), i
        """,
        str(tmp_path),
    )


def test_files_of_other_kinds_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for content, message in (
        (b"", "empty"),
        (bytes(5000), "begins with zeros"),
        (b"hello world, this is no checkpoint", "neither"),
        (pickle.dumps({"a": 1}), "neither"),
        (zlib.compress(b"x" * 1000), "neither"),
        (b"PK\x03\x04" + bytes(100), "no zip end record"),
    ):
        path.write_bytes(content)
        with pytest.raises(headrace.FormatError, match=message):
            headrace.load(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("hello.txt", "x")
    with pytest.raises(headrace.FormatError, match=r"not written by torch\.save"):
        headrace.load(path)
    archive(path, PICKLES["eval"], {"constants.pkl": b"x"})
    with pytest.raises(headrace.FormatError, match="TorchScript"):
        headrace.load(path)


def test_what_was_damaged_and_mended_loads_again(tmp_path: Path) -> None:
    data = make(tmp_path / "a.pt", "torch")
    (tmp_path / "a.pt").write_bytes(data[:-1])
    with pytest.raises(headrace.FormatError):
        headrace.load(tmp_path / "a.pt")
    (tmp_path / "a.pt").write_bytes(data)
    assert_same(small(), headrace.load(tmp_path / "a.pt"))


def test_a_tensor_larger_than_memory_is_named(tmp_path: Path) -> None:
    """Strides of 0 make one element as many as one likes."""
    torch.save({"model": {"huge": torch.ones(1).expand(2**31, 2**31)}}, tmp_path / "a.pt")
    with pytest.raises(headrace.FormatError, match=r"tensor 'model\.huge': it is larger than memory"):
        headrace.open(tmp_path / "a.pt")
