# SPDX-License-Identifier: Apache-2.0
"""Folders of torch.distributed.checkpoint: inspected and verified, and nothing in their pickle is run."""

from __future__ import annotations

import copy
import functools
import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cli_support import measured, run, run_json

torch = pytest.importorskip("torch")


@pytest.fixture
def dcp(tmp_path: Path) -> Path:
    """One that torch wrote: three tensors and two objects."""
    import torch.distributed.checkpoint as checkpoint

    state = {
        "model": {
            "w": torch.arange(6000, dtype=torch.float32).view(20, 300),
            "b": torch.ones(7, dtype=torch.bfloat16),
            "scalar": torch.tensor(2.5),
        },
        "step": 5,
        "name": "run",
    }
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    return tmp_path / "dcp"


def place_of(metadata: Any, name: str) -> Any:
    """Where the first piece of this name lies."""
    return next(place for key, place in metadata.storage_data.items() if key.fqn == name)


def set_place(place: Any, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(place, name, value)


def replace_piece(dcp: Path, name: str, content: bytes) -> None:
    """Puts other bytes in the place of a piece: behind all others."""
    path = data_file(dcp)
    before = path.read_bytes()
    path.write_bytes(before + content)
    rewrite_metadata(dcp, lambda m: set_place(place_of(m, name), offset=len(before), length=len(content)))


def rewritten_zip(old: bytes, compression: int, drop: str = "-") -> bytes:
    target = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(old)) as source,
        zipfile.ZipFile(target, "w", compression) as copied,
    ):
        for name in source.namelist():
            if not name.endswith(drop):
                copied.writestr(name, source.read(name))
    return target.getvalue()


def saved(value: Any) -> bytes:
    target = io.BytesIO()
    torch.save(value, target)
    return target.getvalue()


def data_file(dcp: Path) -> Path:
    (found,) = dcp.glob("*.distcp")
    return found


def rewrite_metadata(dcp: Path, change: Any) -> None:
    path = dcp / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))


def errors(result: dict[str, Any]) -> list[str]:
    return [one["text"] for one in result["problems"] if one["severity"] == "error"]


def test_tensors_and_objects_are_told_as_torch_saved_them(dcp: Path) -> None:
    result = run_json("inspect", dcp)
    found = {one["name"]: (one["dtype"], one["shape"], one["bytes"]) for one in result["tensors"]}
    assert found == {
        "model.w": ("float32", [20, 300], 24000),
        "model.b": ("bfloat16", [7], 14),
        "model.scalar": ("float32", [], 4),
    }
    assert {one["name"] for one in result["others"]} == {"step", "name"}
    assert result["problems"] == []
    good = run_json("verify", dcp)
    assert good["good"]
    assert good["files"][0]["summed_bytes"] > 24000


def test_a_flipped_byte_of_a_tensor_is_found_and_named(dcp: Path) -> None:
    path = data_file(dcp)
    content = bytearray(path.read_bytes())
    at = content.index(torch.arange(100, 200, dtype=torch.float32).numpy().tobytes())
    content[at] ^= 1
    path.write_bytes(content)
    result = run_json("verify", dcp, code=3)
    (problem,) = result["problems"]
    assert problem["tensor"] == "model.w"
    assert "CRC-32" in problem["text"]


def test_a_file_cut_short_or_gone_is_told_by_both_commands(dcp: Path) -> None:
    path = data_file(dcp)
    path.write_bytes(path.read_bytes()[:5000])
    for command in ("inspect", "verify"):
        assert any("the file has 5000" in text for text in errors(run_json(command, dcp, code=3)))
    path.unlink()
    for command in ("inspect", "verify"):
        assert any("no such file" in text for text in errors(run_json(command, dcp, code=3)))


def test_pieces_that_do_not_make_up_their_tensor_are_told(dcp: Path) -> None:
    def shrink(metadata: Any) -> None:
        metadata.state_dict_metadata["model.w"].chunks[0].sizes = torch.Size([10, 300])

    rewrite_metadata(dcp, shrink)
    assert any(
        "3000 elements together, and it has 6000" in text for text in errors(run_json("verify", dcp, code=3))
    )


def test_a_file_elsewhere_is_not_looked_at(dcp: Path) -> None:
    outside = dcp.parent / "outside"
    data_file(dcp).rename(outside)

    def point_there(metadata: Any) -> None:
        for place in metadata.storage_data.values():
            object.__setattr__(place, "relative_path", "../outside")

    rewrite_metadata(dcp, point_there)
    assert any("no such file" in text for text in errors(run_json("verify", dcp, code=3)))


class Touch:
    """What a pickle of a stranger may hold: loading it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_what_the_pickle_would_run_is_named_and_not_run(dcp: Path) -> None:
    trap = dcp.parent / "trap"

    def set_trap(metadata: Any) -> None:
        metadata.planner_data = Touch(trap)

    rewrite_metadata(dcp, set_trap)
    result = run_json("inspect", dcp)
    assert any("import" in one["text"] for one in result["problems"]), result["problems"]
    assert len(result["tensors"]) == 3
    run("verify", dcp)
    assert not trap.exists()


def test_metadata_that_are_none_are_corrupt(dcp: Path) -> None:
    (dcp / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    assert run("inspect", dcp).returncode == 3
    assert "no Metadata" in errors(run_json("verify", dcp, code=3))[0]
    (dcp / ".metadata").write_bytes(b"\x80\x04junk")
    assert run("inspect", dcp).returncode == 3


def test_converting_and_comparing_say_that_they_cannot_yet(dcp: Path) -> None:
    for arguments in (("convert", dcp, dcp.parent / "x.pt"), ("verify", dcp, "--against", dcp)):
        done = run(*arguments)
        assert done.returncode == 1
        assert f"format_utils dcp_to_torch '{dcp}' OUT.pt" in done.stderr
    renamed = dcp.rename(dcp.with_name("it's " + 100 * "x"))
    quoted = str(renamed).replace("'", r"'\''")
    assert f"format_utils dcp_to_torch '{quoted}' OUT.pt" in run("convert", renamed, "x.pt").stderr


def test_a_data_file_of_zeros_is_not_good(dcp: Path) -> None:
    path = data_file(dcp)
    path.write_bytes(bytes(path.stat().st_size))
    found = [one for one in run_json("verify", dcp, code=3)["problems"] if "no archive" in one["text"]]
    assert {one["tensor"] for one in found} >= {"model.w", "model.b", "model.scalar", "step", "name"}


def test_a_piece_without_the_head_of_an_archive_is_told(dcp: Path) -> None:
    def offset(metadata: Any) -> int:
        return int(place_of(metadata, "model.b").offset)

    path = data_file(dcp)
    content = bytearray(path.read_bytes())
    begin = offset(pickle.loads((dcp / ".metadata").read_bytes()))
    content[begin : begin + 4] = bytes(4)
    path.write_bytes(content)
    (problem,) = run_json("verify", dcp, code=3)["problems"]
    assert (problem["tensor"], problem["offset_bytes"]) == ("model.b", begin)
    assert problem["file"] == str(path)


@pytest.mark.parametrize(("skip", "keep"), [(0, 0), (0, 3), (1, None)])
def test_a_piece_that_is_cut_in_the_metadata_is_told(dcp: Path, skip: int, keep: int | None) -> None:
    def cut(metadata: Any) -> None:
        place = place_of(metadata, "model.w")
        length = place.length - skip if keep is None else keep
        set_place(place, offset=place.offset + skip, length=length)

    rewrite_metadata(dcp, cut)
    (problem,) = run_json("verify", dcp, code=3)["problems"]
    assert problem["tensor"] == "model.w"
    assert "no archive" in problem["text"]


def test_a_zip_archive_that_torch_did_not_write_is_told(dcp: Path) -> None:
    empty, other = io.BytesIO(), io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a/b", b"text")
    for content in (empty.getvalue(), other.getvalue()):
        replace_piece(dcp, "model.w", content)
        (problem,) = run_json("verify", dcp, code=3)["problems"]
        assert problem["tensor"] == "model.w"


def test_a_legacy_archive_is_compared_with_the_metadata(dcp: Path) -> None:
    def legacy(value: Any) -> bytes:
        target = io.BytesIO()
        torch.save(value, target, _use_new_zipfile_serialization=False)
        return target.getvalue()

    replace_piece(dcp, "model.b", legacy(torch.ones(7, dtype=torch.bfloat16)))
    good = run_json("verify", dcp)
    assert "no checksums" in good["problems"][0]["text"]
    assert good["files"][0]["read_bytes"] > 0
    replace_piece(dcp, "model.b", legacy(torch.ones(8, dtype=torch.bfloat16)))
    assert "bfloat16 [8]" in errors(run_json("verify", dcp, code=3))[0]


def test_pieces_that_went_through_transformations_are_told_and_read(dcp: Path) -> None:
    def transform(metadata: Any) -> None:
        set_place(place_of(metadata, "model.w"), transform_descriptors=["stream.zstd"])

    rewrite_metadata(dcp, transform)
    result = run_json("verify", dcp)
    assert [one["severity"] for one in result["problems"]] == ["note"]
    assert result["files"][0]["read_bytes"] > 24000


@pytest.mark.parametrize("single", [True, False])
def test_safetensors_pieces_are_known_and_compared(tmp_path: Path, single: bool) -> None:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    pytest.importorskip("safetensors")
    folder = tmp_path / "safe"
    writer = checkpoint.FileSystemWriter(
        folder, single_file_per_rank=single, serialization_format=SerializationFormat.SAFETENSORS
    )
    state = {"w": torch.ones(10, 3), "b": torch.ones(4, dtype=torch.bfloat16), "step": 3}
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save(state, storage_writer=writer, no_dist=True)
    assert run_json("inspect", folder)["problems"] == []
    result = run_json("verify", folder)
    assert {one["severity"] for one in result["problems"]} == {"note"}
    assert sum(one["read_bytes"] for one in result["files"]) >= 128

    def turn(metadata: Any) -> None:
        described = metadata.state_dict_metadata["w"]
        described.size = described.chunks[0].sizes = torch.Size([3, 10])

    rewrite_metadata(folder, turn)
    assert any("float32 [3, 10]" in text for text in errors(run_json("verify", folder, code=3)))


def test_pieces_that_overlap_are_told_by_both_commands_and_read_once(dcp: Path) -> None:
    def lay_over(metadata: Any) -> None:
        w, b = place_of(metadata, "model.w"), place_of(metadata, "model.b")
        set_place(b, offset=w.offset, length=w.length, relative_path="./" + w.relative_path)

    rewrite_metadata(dcp, lay_over)
    for command in ("inspect", "verify"):
        assert any("begin inside those of" in text for text in errors(run_json(command, dcp, code=3)))
    (file,) = run_json("verify", dcp, code=3)["files"]
    assert file["summed_bytes"] + file["read_bytes"] <= file["bytes"]


def test_many_problems_are_counted_and_not_all_told(dcp: Path) -> None:
    def split(metadata: Any) -> None:
        described = metadata.state_dict_metadata["model.w"]
        described.chunks = [
            type(described.chunks[0])(torch.Size([0, i]), torch.Size([20, 1])) for i in range(3000)
        ]

    rewrite_metadata(dcp, split)
    texts = errors(run_json("verify", dcp, code=3))
    assert len(texts) < 1100
    assert any(text.startswith("and ") for text in texts)


def swap(first: str, second: str) -> Any:
    def change(metadata: Any) -> None:
        a, b = place_of(metadata, first), place_of(metadata, second)
        was = (a.offset, a.length)
        set_place(a, offset=b.offset, length=b.length)
        set_place(b, offset=was[0], length=was[1])

    return change


def transpose(metadata: Any) -> None:
    described = metadata.state_dict_metadata["model.w"]
    described.size = described.chunks[0].sizes = torch.Size([300, 20])


def retype(metadata: Any) -> None:
    described = metadata.state_dict_metadata["model.w"]
    described.properties = copy.copy(described.properties)
    described.properties.dtype = torch.int32


@pytest.mark.parametrize(
    ("change", "tensors"),
    [
        (swap("model.w", "model.b"), {"model.w", "model.b"}),
        (swap("model.w", "step"), {"model.w", "step"}),
        (transpose, {"model.w"}),
        (retype, {"model.w"}),
    ],
)
def test_pieces_that_hold_something_else_than_the_metadata_say_are_told(
    dcp: Path, change: Any, tensors: set[str]
) -> None:
    rewrite_metadata(dcp, change)
    problems = run_json("verify", dcp, code=3)["problems"]
    assert {one["tensor"] for one in problems} == tensors
    assert {one["file"] for one in problems} == {str(data_file(dcp))}
    places = pickle.loads((dcp / ".metadata").read_bytes())
    for one in problems:
        assert one["offset_bytes"] == place_of(places, one["tensor"]).offset


def test_properties_that_are_none_are_told(dcp: Path) -> None:
    def drop(metadata: Any) -> None:
        metadata.state_dict_metadata["model.w"].properties = None

    rewrite_metadata(dcp, drop)
    assert "no element type" in errors(run_json("verify", dcp, code=3))[0]


@pytest.mark.parametrize(("name", "offset"), [("model.scalar", None), ("step", torch.Size([]))])
def test_places_that_torch_would_not_find_are_told(dcp: Path, name: str, offset: Any) -> None:
    def rename(metadata: Any) -> None:
        metadata.storage_data = {
            (type(key)(name, offset) if key.fqn == name else key): place
            for key, place in metadata.storage_data.items()
        }

    rewrite_metadata(dcp, rename)
    for command in ("inspect", "verify"):
        (problem,) = run_json(command, dcp, code=3)["problems"]
        assert problem["tensor"] == name
        assert "where this lies" in problem["text"]


def test_what_a_piece_would_import_is_named(dcp: Path) -> None:
    trap = dcp.parent / "trap"
    replace_piece(dcp, "step", saved(Touch(trap)))
    problems = run_json("verify", dcp)["problems"]
    assert {(one["severity"], one["tensor"]) for one in problems} == {("warning", "step")}
    assert any("PosixPath" in one["text"] for one in problems)
    assert not trap.exists()


def test_chunks_may_be_a_tuple(dcp: Path) -> None:
    def change(metadata: Any) -> None:
        described = metadata.state_dict_metadata["model.w"]
        described.chunks = tuple(described.chunks)

    rewrite_metadata(dcp, change)
    assert run_json("verify", dcp)["problems"] == []


def test_compressed_pieces_are_not_checked_and_not_called_damaged(dcp: Path) -> None:
    replace_piece(dcp, "model.w", rewritten_zip(saved(torch.ones(20, 300)), zipfile.ZIP_DEFLATED))
    result = run_json("verify", dcp)
    (problem,) = result["problems"]
    assert (problem["severity"], problem["tensor"]) == ("warning", "model.w")
    assert "not checked" in problem["text"]
    assert result["files"][0]["read_bytes"] > 0


def test_archives_without_sums_are_good(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as checkpoint
    import torch.serialization as serialization

    before = serialization.get_crc32_options()
    serialization.set_crc32_options(False)
    try:
        with pytest.warns(UserWarning, match="single process"):
            checkpoint.save({"w": torch.ones(9)}, checkpoint_id=tmp_path / "x", no_dist=True)
    finally:
        serialization.set_crc32_options(before)
    result = run_json("verify", tmp_path / "x")
    assert result["problems"] == []
    assert result["files"][0]["summed_bytes"] == 0


def test_a_file_of_the_folder_is_answered_with_the_folder(dcp: Path) -> None:
    for command in ("inspect", "verify"):
        for path in (dcp / ".metadata", data_file(dcp)):
            done = run(command, path)
            assert done.returncode == 1
            assert f"name the folder, {dcp}" in done.stderr


def test_metadata_of_single_ranks_are_called_by_their_name(dcp: Path) -> None:
    (dcp / ".metadata").rename(dcp / "__0.metadata")
    for command in ("inspect", "verify"):
        done = run(command, dcp)
        assert done.returncode == 1
        assert "use_collectives=False" in done.stderr


@pytest.mark.parametrize(
    ("kind", "told"), [("loop", "ELOOP"), ("fifo", "no ordinary file"), ("folder", "no ordinary file")]
)
def test_metadata_that_are_no_file_are_told(dcp: Path, kind: str, told: str) -> None:
    path = dcp / ".metadata"
    path.unlink()
    if kind == "loop":
        path.symlink_to(path.name)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    for command in ("inspect", "verify"):
        done = run(command, dcp, timeout=20)
        assert done.returncode == 1
        assert told in done.stderr
        assert str(path) in done.stderr


def test_a_file_name_with_nul_is_no_file(dcp: Path) -> None:
    def change(metadata: Any) -> None:
        place = place_of(metadata, "model.w")
        set_place(place, relative_path=place.relative_path + "\0x")

    rewrite_metadata(dcp, change)
    for command in ("inspect", "verify"):
        assert any("no such file" in text for text in errors(run_json(command, dcp, code=3)))


def test_statistics_are_sums_over_the_pieces(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as checkpoint

    values = torch.randn(30, 20)
    values[3, 4], values[20, 1], values[29] = float("nan"), float("inf"), 0.0
    state = {"w": values, "t": values.t(), "c": torch.ones(3, dtype=torch.complex64), "step": 3}
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save(state, checkpoint_id=tmp_path / "x", no_dist=True)

    # One tensor of two pieces, as two ranks write them.
    def cut(metadata: Any) -> None:
        described = metadata.state_dict_metadata["w"]
        (chunk,) = described.chunks
        described.chunks = [
            type(chunk)(torch.Size([begin, 0]), torch.Size([end - begin, 20]))
            for begin, end in ((0, 11), (11, 30))
        ]
        (key,) = (key for key in metadata.storage_data if key.fqn == "w")
        place = metadata.storage_data.pop(key)
        for begin, end in ((0, 11), (11, 30)):
            path = tmp_path / "x" / f"__{begin}_9.distcp"
            torch.save(values[begin:end].clone(), path)
            new = copy.copy(place)
            set_place(new, relative_path=path.name, offset=0, length=path.stat().st_size)
            metadata.storage_data[type(key)("w", torch.Size([begin, 0]))] = new

    rewrite_metadata(tmp_path / "x", cut)
    result = run_json("verify", tmp_path / "x", "--stats")
    assert result["problems"] == []
    stats = {one["name"]: one for one in result["stats"]}
    for name in ("w", "t"):
        one = stats[name]
        assert one["why_not"] is None
        assert [one[key] for key in ("elements", "nan", "inf", "zero")] == [600, 1, 1, 20]
        assert one["min"] == pytest.approx(values[~values.isnan()].min().item())
    assert stats["c"]["elements"] == 6
    path = tmp_path / "x" / "__0_9.distcp"
    content = bytearray(path.read_bytes())
    content[content.index(values[:1].numpy().tobytes())] ^= 1
    path.write_bytes(content)
    (one,) = (
        one for one in run_json("verify", tmp_path / "x", "--stats", code=3)["stats"] if one["name"] == "w"
    )
    assert (one["elements"], one["min"]) == (0, None)
    assert "damaged" in one["why_not"]


def test_a_view_that_reaches_beyond_its_storage_is_told(dcp: Path) -> None:
    """torch.distributed.checkpoint.load refuses to make it."""
    target = io.BytesIO()
    source = zipfile.ZipFile(io.BytesIO(saved(torch.arange(6000, dtype=torch.float32).view(20, 300))))
    with zipfile.ZipFile(target, "w") as copied:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("/data.pkl"):
                assert content.count(b"M\x70\x17") == 1
                content = content.replace(b"M\x70\x17", b"M\x01\x00")  # the number of elements of the storage
            copied.writestr(name, content[:4] if name.endswith("/data/0") else content)
    replace_piece(dcp, "model.w", target.getvalue())
    (problem,) = run_json("verify", dcp, code=3)["problems"]
    assert "a storage of 1 elements, and its tensor [20, 300] reaches beyond" in problem["text"]


def test_a_legacy_archive_that_was_cut_short_is_told(dcp: Path) -> None:
    target = io.BytesIO()
    torch.save(torch.ones(7, dtype=torch.bfloat16), target, _use_new_zipfile_serialization=False)
    for missing in (1, 14, 22):
        replace_piece(dcp, "model.b", target.getvalue()[:-missing])
        (told,) = errors(run_json("verify", dcp, code=3))
        assert "longer than what is left of its archive" in told


def test_a_legacy_archive_of_an_object_is_looked_into(dcp: Path) -> None:
    trap = dcp.parent / "trap"
    value = {"moments": [torch.ones(1000), torch.ones(500, dtype=torch.int64)], "other": Touch(trap)}
    target = io.BytesIO()
    torch.save(value, target, _use_new_zipfile_serialization=False)
    replace_piece(dcp, "step", target.getvalue())
    problems = run_json("verify", dcp)["problems"]
    assert {one["severity"] for one in problems} == {"warning", "note"}
    assert any("PosixPath" in one["text"] for one in problems)
    assert not trap.exists()
    for missing in (1, 4000, 8000):
        replace_piece(dcp, "step", target.getvalue()[:-missing])
        (told,) = errors(run_json("verify", dcp, code=3))
        assert f"storages of 8016 bytes are longer than what is left of its archive, {8016 - missing}" in told


def test_one_file_by_many_links_to_its_folder_is_read_once(dcp: Path) -> None:
    path = data_file(dcp)
    os.truncate(path, 4 << 20)
    (dcp / "l").symlink_to(".")

    def change(metadata: Any) -> None:
        for i, place in enumerate(metadata.storage_data.values()):
            name = "l/" * i + path.name
            set_place(place, offset=0, length=4 << 20, relative_path=name, transform_descriptors=["zstd"])

    rewrite_metadata(dcp, change)
    result = run_json("verify", dcp, code=3)
    assert len([text for text in errors(result) if "begin inside those of" in text]) == 4
    (file,) = result["files"]
    assert file["read_bytes"] == 4 << 20


def test_equal_files_of_a_cache_may_be_links_to_one(dcp: Path) -> None:
    path = data_file(dcp)
    content = path.read_bytes()
    metadata = pickle.loads((dcp / ".metadata").read_bytes())
    place = place_of(metadata, "step")
    blob = dcp.parent / "blob"
    blob.write_bytes(content[place.offset : place.offset + place.length])
    for name in ("step", "name"):
        (dcp / name).symlink_to(blob)
        set_place(place_of(metadata, name), offset=0, length=place.length, relative_path=name)
    (dcp / ".metadata").write_bytes(pickle.dumps(metadata))
    assert run_json("verify", dcp)["problems"] == []


def test_long_paths_of_objects_are_cut(dcp: Path) -> None:
    rewrite_metadata(
        dcp, lambda m: set_place(place_of(m, "step"), relative_path="./" * 2000 + data_file(dcp).name)
    )
    result = run_json("inspect", dcp)
    assert result["problems"] == []
    for one in result["others"]:
        assert "__0_0.distcp'" in one["text"]
        assert len(one["text"]) < 200


def test_the_names_that_many_pieces_would_import_take_no_memory(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as checkpoint

    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save({f"o{i}": i for i in range(30)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    path = data_file(tmp_path / "dcp")
    metadata = pickle.loads((tmp_path / "dcp" / ".metadata").read_bytes())
    with open(path, "ab") as file:
        for i, place in enumerate(metadata.storage_data.values()):
            names = b"".join(b"c%s\n%d_%d\n" % (b"x" * 4000, i, j) for j in range(2500))
            target = io.BytesIO()
            with zipfile.ZipFile(target, "w") as archive:
                archive.writestr("a/data.pkl", b"\x80\x02](" + names + b"e.")
                archive.writestr("a/version", b"3\n")
            set_place(place, offset=file.tell(), length=file.write(target.getvalue()))
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(metadata))
    code, resident, _ = measured("verify", tmp_path / "dcp")
    assert code == 0
    assert resident < 250 << 20


class Opaque:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        # No call of a global: what is called is itself made by a call.
        return (functools.partial(Opaque), (self.data,))


def test_the_pickles_of_objects_are_let_go_one_after_the_other(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as checkpoint

    state = {f"object {i}": Opaque(bytes([i]) * (8 << 20)) for i in range(50)}
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    code, resident, _ = measured("verify", tmp_path / "dcp")
    assert code == 0
    assert resident < 250 << 20


def test_a_dtype_with_a_long_name_is_refused(dcp: Path) -> None:
    path = dcp / ".metadata"
    text = pickle.dumps(pickle.loads(path.read_bytes()), protocol=2)
    assert b"ctorch\nfloat32\n" in text
    path.write_bytes(text.replace(b"ctorch\nfloat32\n", b"ctorch\n" + b"f" * 100 + b"\n"))
    assert "name of 106 bytes" in json.dumps(run_json("verify", dcp, code=3))
