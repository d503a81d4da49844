# SPDX-License-Identifier: Apache-2.0
"""Folders of torch.distributed.checkpoint: inspected and verified, and nothing in their pickle is run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from cli_support import run, run_json

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
        assert "torch.distributed.checkpoint" in done.stderr
