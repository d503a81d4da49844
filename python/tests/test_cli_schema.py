# SPDX-License-Identifier: Apache-2.0
"""docs/schema says what --json prints: all of it, and nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_support import SCHEMAS, flipped, run, run_json, safetensors_file

MINE = ["inspect", "verify", "verify-against", "convert", "error"]


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def results(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Of every kind several, so that each branch of each schema is met."""
    bits = b"\0\0\xc0\x7f\0\0\x80\x7f\0\0\x80\xff"
    path = safetensors_file(
        folder / "x.safetensors",
        {"w": ("F32", [3], bits), "odd": ("U8", [1], b"x"), "i": ("F64", [1], bytes(8))},
        k="v",
    )
    other = flipped(path, path.stat().st_size - 1, folder / "other.safetensors")
    torn = folder / "torn.safetensors"
    torn.write_bytes(path.read_bytes()[:-1])
    less = safetensors_file(
        folder / "less.safetensors", {"w": ("F32", [1], bytes(4)), "new": ("U8", [0], b"")}
    )
    shards = run_json("convert", path, folder / "shards", "--shard-size", "12")
    return {
        "inspect": [run_json("inspect", path), run_json("inspect", folder / "shards")],
        "verify": [run_json("verify", path, "--stats"), run_json("verify", torn, code=3)],
        "verify-against": [
            run_json("verify", path, "--against", path),
            run_json("verify", path, "--against", other, code=3),
            run_json("verify", path, "--against", less, code=3),
        ],
        "convert": [shards, run_json("convert", path, folder / "x.pt", "--dtype", "bfloat16")],
        "error": [
            json.loads(run("inspect", torn, "--json").stdout),
            json.loads(run("inspect", folder / "none", "--json").stdout),
            json.loads(run("inspect", "--json").stdout),
        ],
    }


@pytest.mark.parametrize("name", MINE)
def test_a_schema_is_one_and_leaves_no_object_open(name: str) -> None:
    whole = schema(name)
    jsonschema.Draft202012Validator.check_schema(whole)

    def objects(part: Any) -> Iterator[dict[str, Any]]:
        if isinstance(part, dict):
            if part.get("type") == "object":
                yield part
            for value in part.values():
                yield from objects(value)
        if isinstance(part, list):
            for value in part:
                yield from objects(value)

    for part in objects(whole):
        if "properties" in part:
            assert part["additionalProperties"] is False
            assert sorted(part["required"]) == sorted(part["properties"])
    assert whole["properties"]["schema"]["const"] == f"headrace.{name}"


@pytest.mark.parametrize("name", MINE)
def test_what_is_printed_is_what_the_schema_says_and_no_more(name: str, tmp_path: Path) -> None:
    rules = jsonschema.Draft202012Validator(schema(name))
    for result in results(tmp_path)[name]:
        rules.validate(result)
        for key in result:
            less = {k: v for k, v in result.items() if k != key}
            assert not rules.is_valid(less), key
        assert not rules.is_valid(result | {"another": 1})
        assert not rules.is_valid(result | {"version": 2})
        for key, value in result.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                more = copy.deepcopy(result)
                more[key][0]["another"] = 1
                assert not rules.is_valid(more), key


def test_every_schema_that_is_there_is_looked_at() -> None:
    named = {path.stem for path in SCHEMAS.glob("*.json")}
    assert named >= set(MINE)
