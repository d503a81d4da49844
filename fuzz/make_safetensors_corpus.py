#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes fuzz/corpus/safetensors_fuzz: small files of the real package, and files with one fault each.

Usage: make_safetensors_corpus.py FOLDER. Needs safetensors 0.8, which writes the good files, and says of
each of the others that it refuses it too; those that it takes all the same are named in LAXER.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from pathlib import Path

import safetensors

# The reference opens these; docs/formats/safetensors.md says why headrace does not.
LAXER = {"bad_duplicate_name", "bad_leading_blank"}


def good(tensors: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str] | None = None) -> bytes:
    buffers = {
        name: ctypes.create_string_buffer(data, max(1, len(data))) for name, (_, _, data) in tensors.items()
    }
    specs = {
        name: safetensors.TensorSpec(
            dtype=dtype, shape=shape, data_ptr=ctypes.addressof(buffers[name]), data_len=len(data)
        )
        for name, (dtype, shape, data) in tensors.items()
    }
    return bytes(safetensors.serialize(specs, metadata))


def bad(json: str | bytes, data: bytes = b"datadata", length: int | None = None) -> bytes:
    json = json.encode() if isinstance(json, str) else json
    return struct.pack("<Q", len(json) if length is None else length) + json + data


def tensor(dtype: str = "U8", shape: str = "[8]", offsets: str = "[0,8]") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


def files() -> dict[str, bytes]:
    half, quarter = tensor(shape="[4]", offsets="[0,4]"), tensor(shape="[2]", offsets="[6,8]")
    return {
        "good_nothing": good({}),
        "good_metadata": good({"w": ("float32", [2], b"12345678")}, {"format": "pt"}),
        "good_empty_metadata": good({"w": ("bool", [1], b"1")}, {}),
        "good_names": good(
            {'a"\\\n\x01': ("uint8", [1], b"1"), "é😀": ("int8", [1], b"2"), "": ("uint8", [0], b"")}
        ),
        "good_shapes": good(
            {
                "s": ("float64", [], b"12345678"),
                "z": ("int16", [3, 0, 2], b""),
                "m": ("bfloat16", [2, 1], b"1234"),
            }
        ),
        "good_packed": good(
            {"f4": ("float4_e2m1fn_x2", [2, 3], b"123456"), "e8": ("float8_e8m0fnu", [2], b"12")}
        ),
        "bad_duplicate_name": bad(f'{{"a":{tensor()},"a":{tensor()}}}'),
        "bad_duplicate_field": bad('{"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}}'),
        "bad_overlap": bad(f'{{"a":{half},"b":{tensor(shape="[5]", offsets="[3,8]")}}}'),
        "bad_hole": bad(f'{{"a":{half},"b":{quarter}}}'),
        "bad_shape": bad(f'{{"a":{tensor(shape="[9]")}}}'),
        "bad_dtype": bad(f'{{"a":{tensor("C128")}}}'),
        "bad_length": bad(f'{{"a":{tensor()}}}', length=2**64 - 1),
        "bad_reversed": bad(f'{{"a":{tensor(offsets="[8,0]")}}}'),
        "bad_past_end": bad(f'{{"a":{tensor(shape="[16]", offsets="[0,16]")}}}'),
        "bad_overflow": bad(f'{{"a":{tensor(shape="[9223372036854775808,2]", offsets="[0,0]")}}}', b""),
        "bad_negative": bad(f'{{"a":{tensor(shape="[-8]")}}}'),
        "bad_float": bad(f'{{"a":{tensor(shape="[8.0]")}}}'),
        "bad_truncated": bad(f'{{"a":{tensor()}}}', b"datadat"),
        "bad_trailing": bad(f'{{"a":{tensor()}}}', b"datadata" + b"x" * 16),
        "bad_half_byte": bad(f'{{"a":{tensor("F4", "[3]", "[0,2]")}}}', b"da"),
        "bad_metadata": bad(f'{{"__metadata__":{{"k":1}},"a":{tensor()}}}'),
        "bad_utf8": bad(b'{"\xc0\xaf":' + tensor().encode() + b"}"),
        "bad_leading_blank": bad(f' {{"a":{tensor()}}}'),
    }


def opens(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return False
    return True


def main() -> int:
    folder = Path(sys.argv[1])
    for name, data in files().items():
        if opens(data) != (name.startswith("good") or name in LAXER):
            print(f"{name}: the reference says otherwise", file=sys.stderr)
            return 1
        (folder / name).with_suffix(".safetensors").write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
