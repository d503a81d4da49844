# SPDX-License-Identifier: Apache-2.0
"""The tensors that a checkpoint holds: which there are, made from the stamped source file, compared with it.

The layout is pure arithmetic, the same in every process. The tensors hold the bytes of the source file, in
order, so what a contender saved or loaded is compared with that file byte for byte.
"""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import stamps
from stamps import WrongDataError

LAYERS = 11
LAYERS_SHARE = 0.9  # of the bytes; the embedding has the rest
MANY_BYTES = (16 << 10, 64 << 10)
Tensors: TypeAlias = Any  # a dict from names to tensors, as libraries give it that have no types
ITEM_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Spec:
    """One tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        count = ITEM_BYTES[self.dtype]
        for length in self.shape:
            count *= length
        return count


def layout_of(options: dict[str, Any]) -> list[Spec]:
    """Options: {"layers_bytes": about how many bytes of a transformer} or {"many": how many small ones}."""
    if "many" in options:
        return many(options["many"])
    return layers(options["layers_bytes"])


def layers(size: int) -> list[Spec]:
    """About 100 tensors: matrices of a transformer in bfloat16, norms in float32, an embedding, one odd."""
    width = max(8, int((size * LAYERS_SHARE / (24 * LAYERS)) ** 0.5) // 8 * 8)  # 24 w² bytes a layer
    inner = width * 8 // 3
    found = []
    for number in range(LAYERS):
        found += [
            Spec(f"layers.{number}.attention.{part}.weight", "bfloat16", (width, width)) for part in "qkvo"
        ]
        found += [Spec(f"layers.{number}.mlp.{part}", "bfloat16", (inner, width)) for part in ("gate", "up")]
        found.append(Spec(f"layers.{number}.mlp.down", "bfloat16", (width, inner)))
        found += [Spec(f"layers.{number}.norm{part}", "float32", (width,)) for part in (1, 2)]
    odd = Spec("odd", "bfloat16", (3, 7))  # what follows it lies at no round place, where a format packs
    rows = max(1, (size - total([*found, odd])) // (2 * width))
    return [odd, *found, Spec("embedding", "bfloat16", (rows, width))]


def many(count: int) -> list[Spec]:
    """Tensors of 16 to 64 KiB."""
    least, most = MANY_BYTES
    sizes = random.Random(count)
    return [Spec(f"piece.{i}", "float32", (sizes.randrange(least, most + 1, 4) // 4,)) for i in range(count)]


def total(specs: list[Spec]) -> int:
    """Bytes of all."""
    return sum(spec.nbytes for spec in specs)


def new(torch: Any, specs: list[Spec]) -> dict[str, Any]:
    """Ordinary torch tensors whose every byte is zero and touched."""
    return {spec.name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)).zero_() for spec in specs}


def made(torch: Any, specs: list[Spec], source: str) -> dict[str, Any]:
    """Ordinary torch tensors with the bytes of the source file, and so with every page touched."""
    state = {spec.name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs}
    offset = 0
    for tensor in state.values():
        view = memoryview(bytes_of(torch, tensor).numpy())
        stamps.fill(view, source, offset)
        offset += view.nbytes
    return state


def bytes_of(torch: Any, tensor: Any) -> Any:
    """A tensor's bytes, as a flat tensor on the same memory."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def touch(torch: Any, tensors: dict[str, Any]) -> None:
    """Reads one byte of each page, and the last one: no byte may stay behind a page fault."""
    for tensor in tensors.values():
        flat = bytes_of(torch, tensor)
        int(flat[:: mmap.PAGESIZE].sum())
        int(flat[-1])


def check(torch: Any, specs: list[Spec], found: dict[str, Any], source: str) -> None:
    """Raises WrongDataError unless these are exactly those tensors."""
    names = [spec.name for spec in specs]
    if sorted(found) != sorted(names):
        raise WrongDataError(f"{len(found)} tensors came back instead of {len(names)}, or under other names")
    for spec, expected in with_bytes(torch, specs, source):
        tensor = found[spec.name]
        if (str(tensor.dtype), tuple(tensor.shape)) != (f"torch.{spec.dtype}", spec.shape):
            raise WrongDataError(f"{spec.name} came back as {tensor.dtype} of shape {tuple(tensor.shape)}")
        if not torch.equal(bytes_of(torch, tensor), expected):
            raise WrongDataError(f"{spec.name} came back with other bytes")


def with_bytes(torch: Any, specs: list[Spec], source: str) -> Iterator[tuple[Spec, Any]]:
    """Each tensor with its bytes in the source file."""
    with open(source, "rb") as file:
        # Private and writable only because torch warns about memory that it may not write to.
        mapped = torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    offset = 0
    for spec in specs:
        yield spec, mapped[offset : offset + spec.nbytes]
        offset += spec.nbytes
