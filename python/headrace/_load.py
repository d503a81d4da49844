# SPDX-License-Identifier: Apache-2.0
"""headrace.load. What it needs of torch is imported when it is called."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from . import _core
from ._bounds import Filled, has_plain_memory, memory_of, refuse_overlaps
from ._core import CheckpointFile
from ._default import default_handle, need_torch
from ._errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from ._core import Handle
    from ._torch_unpickle import MapLocation
    from ._types import Path, Verify

# What goes on to other memory is read in parts of about so many bytes, one or more storages each.
_PART_BYTES = 64 << 20
_PARTS_AHEAD = 2
# How the reader of pickles refuses what torch's weights_only refuses too, and its other unpickler may take.
_BEYOND_THE_READER = "is not read: torch's weights_only accepts"


def load(
    path: Path,
    map_location: MapLocation = None,
    weights_only: bool = True,
    into: Any = None,
    verify: Verify = "auto",
    mmap: bool = False,
    *,
    handle: Handle | None = None,
) -> Any:
    """Loads a checkpoint file of torch (either container) or safetensors; the format is told by the content.

    Returns the object that was saved; of a safetensors file a dict from names to tensors. ``path`` may also
    name a folder, an index (``*.index.json``) or the common start of the names of several files: then their
    tensors come back as one dict.

    ``map_location``: as in torch.load. ``weights_only=False`` lets the file run code: only for files you
    trust. ``into``: a dict (nested as saved) of tensors that are filled in place and returned; names, shapes
    and dtypes must be those of the file. What else is in it stays as it is; on an error some tensors may be
    filled and others not. ``verify``: "auto" compares the CRC-32 of each record of a zip
    container that is read whole; "require" also refuses files and ranges without sums; "off" compares
    nothing. ``mmap=True`` maps the file: tensors are views of it (changes stay private), and nothing is
    verified; those that the file holds at odd places (legacy containers) are copied. ``handle``: the Handle
    to read with; by default one that the process shares.

    New tensors lie in memory on huge pages; small ones share blocks of up to 64 MiB, each of which is freed
    when its last tensor is. Their storages cannot be resized. Raises FormatError for a file that is damaged,
    TransferError (an OSError) for what the system refuses, pickle.UnpicklingError for a pickle that needs
    weights_only=False.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(
            f"path must be str, bytes or os.PathLike, not {type(path).__name__}; for an open file there is "
            "torch.load(file)"
        )
    if verify not in ("auto", "require", "off"):
        raise ValueError(f"verify must be one of 'auto', 'require', 'off', not {verify!r}")
    if mmap and into is not None:
        raise ValueError("mmap=True maps the file and into= fills other memory: choose one")
    if mmap and verify == "require":
        raise ValueError("mmap=True reads nothing, so verify='require' cannot be kept")
    if into is not None and map_location is not None:
        raise ValueError("into= fills tensors where they are, so map_location has no meaning with it")
    if handle is not None and not isinstance(handle, _core.Handle):
        raise TypeError(f"handle must be a headrace.Handle or None, not {type(handle).__name__}")
    need_torch("headrace.load")
    handle = handle or default_handle()
    if os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0").lower() in ("1", "y", "yes", "true"):
        weights_only = True  # as torch.load has it
    paths, index = _core.checkpoint_files(path)
    if index is None and len(paths) == 1:
        name = path if paths == [os.fsdecode(path)] else paths[0]
        try:
            file = CheckpointFile(handle, name, verify)
        except FormatError as error:
            if weights_only or into is not None or _BEYOND_THE_READER not in str(error):
                raise
            return _load_any_pickle(name, error, map_location, verify, mmap)
    else:
        files = {one: CheckpointFile(handle, one, verify) for one in paths}
        if into is not None:
            return _fill(_stored(files, index), into, os.fsdecode(path), verify, handle)
        return _load_shards(files, index, map_location, weights_only, verify, mmap, handle)
    if into is not None:
        return _fill(_stored({"": file}, None), into, os.fsdecode(path), verify, handle)
    if file.format == "safetensors":
        return _load_safetensors(file, map_location, verify, mmap, handle)
    return _load_torch(file, map_location, weights_only, verify, mmap, handle)


def _stored(
    files: dict[str, CheckpointFile], index: dict[str, str] | None
) -> dict[str, tuple[CheckpointFile, tuple[Any, ...]]]:
    """Every tensor by its name, and the file it is in."""
    stored: dict[str, tuple[CheckpointFile, tuple[Any, ...]]] = {}
    for path, file in files.items():
        for tensor in file.tensors():
            if index is not None and index.get(tensor[0]) != path:
                continue
            if tensor[0] in stored:
                other = stored[tensor[0]][0]
                where = f"{file.name!r}" if other is file else f"{other.name!r} and {file.name!r}"
                raise ValueError(f"there are two tensors named {tensor[0]!r} in {where}")
            stored[tensor[0]] = (file, tensor)
    if index is not None and index.keys() != stored.keys():
        lost = sorted(index.keys() - stored.keys())
        raise ValueError(f"{index[lost[0]]!r} does not hold {lost[0]!r}, which the index says it does")
    return stored


def _load_shards(
    files: dict[str, CheckpointFile],
    index: dict[str, str] | None,
    map_location: MapLocation,
    weights_only: bool,
    verify: Verify,
    mmap: bool,
    handle: Handle,
) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for path, file in files.items():
        if file.format == "safetensors":
            part = _load_safetensors(file, map_location, verify, mmap, handle)
        else:
            part = _load_torch(file, map_location, weights_only, verify, mmap, handle)
            if not isinstance(part, dict):
                raise ValueError(
                    f"{path!r} holds a {type(part).__name__}, and parts of a checkpoint are dicts"
                )
        for name, value in part.items():
            if index is not None and index.get(name) != path:
                continue
            if name in whole:
                raise ValueError(f"{path!r} and a file before it both hold {name!r}")
            whole[name] = value
    if index is not None and index.keys() != whole.keys():
        lost = sorted(index.keys() - whole.keys())
        raise ValueError(f"{index[lost[0]]!r} does not hold {lost[0]!r}, which the index says it does")
    return whole


def _storages(
    file: CheckpointFile, wanted: list[int], verify: Verify, mmap: bool, handle: Handle
) -> list[Any]:
    """Storages of these numbers, each over its own bytes."""
    from ._torch_unpickle import aligned, empty_storage, mapped_storage, part_of, storage_of

    if mmap:
        facts = file.storages()
        mapped = mapped_storage(file)
        types = {tensor[4]: tensor[1] for tensor in file.tensors()} if file.format == "safetensors" else {}
        return [
            aligned(part_of(mapped, facts[i][1], facts[i][2]), types.get(i, facts[i][4]))
            if facts[i][2]
            else empty_storage()
            for i in wanted
        ]
    places, memory = file.load(handle, wanted, verify)
    wholes = [storage_of(one) for one in memory]
    return [part_of(wholes[i], offset, nbytes) if nbytes else empty_storage() for i, offset, nbytes in places]


def _read_ahead(
    file: CheckpointFile, wanted: list[int], verify: Verify, handle: Handle
) -> Generator[tuple[int, Any], None, None]:
    """Number and storage, in that order. Whoever takes them copies them elsewhere: the next parts are read
    meanwhile, and the host holds no more than a few."""
    facts = file.storages()
    parts: list[list[int]] = []
    room = 0
    for i in wanted:
        if not parts or facts[i][2] > room:
            parts.append([])
            room = _PART_BYTES
        parts[-1].append(i)
        room -= facts[i][2]
    under_way: deque[tuple[list[int], Future[list[Any]]]] = deque()

    def first() -> Iterator[tuple[int, Any]]:
        numbers, storages = under_way.popleft()
        return zip(numbers, storages.result(), strict=True)

    def started(part: list[int]) -> Future[list[Any]]:
        try:
            return readers.submit(_storages, file, part, verify, False, handle)
        except RuntimeError:  # the interpreter is ending, and starts no threads
            done: Future[list[Any]] = Future()
            done.set_result(_storages(file, part, verify, False, handle))
            return done

    with ThreadPoolExecutor(_PARTS_AHEAD, thread_name_prefix="headrace-load") as readers:
        try:
            for part in parts:
                under_way.append((part, started(part)))
                if len(under_way) > _PARTS_AHEAD:
                    yield from first()
            while under_way:
                yield from first()
        finally:
            for _, storages in under_way:
                storages.cancel()


def _restored(
    file: CheckpointFile,
    wanted: list[int],
    locations: list[str],
    map_location: MapLocation,
    verify: Verify,
    mmap: bool,
    handle: Handle,
) -> list[Any]:
    """Storages of these numbers where they belong, as torch.load has it."""
    from ._torch_unpickle import leaves_host, restorer

    restore: Callable[[Any, str], Any] = restorer(map_location)
    if not mmap and leaves_host(map_location, locations):
        with contextlib.closing(_read_ahead(file, wanted, verify, handle)) as ahead:
            return [restore(storage, where) for (_, storage), where in zip(ahead, locations, strict=True)]
    loaded = _storages(file, wanted, verify, mmap, handle)
    return [restore(storage, where) for storage, where in zip(loaded, locations, strict=True)]


def _load_any_pickle(
    path: Path, refused: FormatError, map_location: MapLocation, verify: Verify, mmap: bool
) -> Any:
    """What uses more of pickle than the restricted reader takes, such as another protocol."""
    import torch

    if verify == "require":
        raise refused
    try:
        return torch.load(os.fsdecode(path), map_location=map_location, weights_only=False, mmap=mmap)
    except (EOFError, pickle.UnpicklingError) as reason:
        raise refused from reason


def _load_torch(
    file: CheckpointFile,
    map_location: MapLocation,
    weights_only: bool,
    verify: Verify,
    mmap: bool,
    handle: Handle,
) -> Any:
    import torch

    from ._torch_unpickle import is_meta, on_host, refuse_unsafe, replay, typed, unpickle

    if not file.little_endian:
        # The bytes of every element have to be swapped: torch's own loader does that, and compares no sums.
        if verify == "require":
            raise ValueError(
                "verify='require': files of big-endian machines are loaded by torch, which compares nothing"
            )
        return torch.load(
            os.fsdecode(file.name), map_location=map_location, weights_only=weights_only, mmap=mmap
        )
    if torch._guards.detect_fake_mode() is not None:
        if verify == "require":
            raise ValueError("verify='require': under FakeTensorMode torch loads no data, and compares none")
        return torch.load(os.fsdecode(file.name), map_location=map_location, weights_only=weights_only)
    known = not file.globals(known=False)
    if weights_only and not known:
        refuse_unsafe(file)
    facts = file.storages()
    everything = list(range(len(facts)))
    if is_meta(map_location):
        untyped: list[Any] = [torch.UntypedStorage(fact[2], device="meta") for fact in facts]
    else:
        locations = [fact[5] or "cpu" for fact in facts]
        untyped = _restored(file, everything, locations, map_location, verify, mmap, handle)
    storages = [typed(storage, fact[4]) for storage, fact in zip(untyped, facts, strict=True)]
    with on_host(untyped):
        if known and weights_only:
            return replay(file, storages)
        by_key = {fact[0]: storage for fact, storage in zip(facts, storages, strict=True)}
        return unpickle(file, by_key, weights_only, map_location)


def _load_safetensors(
    file: CheckpointFile, map_location: MapLocation, verify: Verify, mmap: bool, handle: Handle
) -> dict[str, Any]:
    import torch

    from ._torch_unpickle import is_meta

    tensors = file.tensors()
    meta = is_meta(map_location)
    if meta:
        storages: list[Any] = [torch.UntypedStorage(tensor[6], device="meta") for tensor in tensors]
    else:
        wanted = [tensor[4] for tensor in tensors]
        storages = _restored(file, wanted, ["cpu"] * len(wanted), map_location, verify, mmap, handle)
    return {
        tensor[0]: view_of(storage, tensor[1], 0, *torch_shape(tensor[1], tensor[2], tensor[3]))
        for tensor, storage in zip(tensors, storages, strict=True)
    }


def torch_shape(dtype: str, shape: list[int], strides: list[int]) -> tuple[list[int], list[int]]:
    """As torch counts elements: it has no type of less than a byte, and packs two float4 into one element."""
    if dtype != "float4_e2m1fn_x2" or (shape and shape[-1] == 0):  # strides count an extent of 0 as 1
        return shape, strides
    if not shape or shape[-1] % 2:
        raise ValueError(f"a tensor of 4-bit elements of shape {shape} has no whole bytes in its rows")
    return [*shape[:-1], shape[-1] // 2], [*(stride // 2 for stride in strides[:-1]), 1]


def view_of(
    storage: Any, dtype: str, offset_bytes: int, shape: list[int], strides: list[int], bits: str = ""
) -> Any:
    """A tensor over part of a storage. ``bits``: "conj", "neg" or both, for values that are not as stored."""
    import torch

    from ._torch_unpickle import dtype_of

    kind = dtype_of(dtype)
    empty = torch.empty(0, dtype=kind, device=storage.device)
    view = empty.set_(storage, offset_bytes // kind.itemsize, shape, strides)
    view = view.conj() if "conj" in bits else view
    return torch._neg_view(view) if "neg" in bits else view


def _flatten(value: Any, prefix: str, found: dict[str, Any], around: tuple[int, ...] = ()) -> None:
    """The tensors in nested dicts, lists and tuples, by the names that the file gives them."""
    from collections.abc import Mapping

    import torch

    if isinstance(value, torch.Tensor):
        if prefix in found:
            raise ValueError(f"into= holds two tensors whose keys both make the name {prefix!r}")
        found[prefix] = value
        return
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return
    if id(value) in around:
        raise ValueError(f"into= holds itself at {prefix!r}")
    for key, item in items:
        _flatten(item, f"{prefix}.{key}" if prefix else str(key), found, (*around, id(value)))


def _some(names: set[str]) -> str:
    shown = sorted(names)[:8]
    return ", ".join(map(repr, shown)) + (
        f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    )


def _fill(
    stored: dict[str, tuple[CheckpointFile, tuple[Any, ...]]],
    into: Any,
    path: str,
    verify: Verify,
    handle: Handle,
) -> Any:
    import torch

    from ._torch_unpickle import dtype_of

    targets: dict[str, torch.Tensor] = {}
    _flatten(into, "", targets)
    if not targets and not (isinstance(into, dict) and not into):
        raise TypeError(
            "into= must be a dict of tensors, as model.state_dict() gives it; this "
            f"{type(into).__name__} holds none"
        )
    missing = targets.keys() - stored.keys()
    unexpected = stored.keys() - targets.keys()
    if missing or unexpected:
        parts = []
        if missing:
            parts.append(f"it lacks {_some(missing)}")
        if unexpected:
            parts.append(f"it also holds {_some(unexpected)}")
        raise KeyError(f"{path!r} does not hold the tensors of into=: {'; '.join(parts)}")
    reads: dict[CheckpointFile, list[tuple[int, int, int, int]]] = {}
    later: dict[CheckpointFile, list[tuple[torch.Tensor, tuple[Any, ...]]]] = {}
    filled: list[Filled] = []
    held: list[Any] = []  # `t.data = other` would otherwise free the memory under the reads
    for name, target in targets.items():
        if target.is_meta or target.is_quantized or target.is_nested:
            what = (
                "it has no memory (meta)"
                if target.is_meta
                else "its scale would stay (quantised)"
                if target.is_quantized
                else "its parts have shapes of their own (nested)"
            )
            raise ValueError(f"tensor {name!r} of into= cannot be filled: {what}")
        file, facts = stored[name]
        if not file.little_endian:
            raise ValueError("into= does not swap bytes: this file was written by a big-endian machine")
        _, dtype, shape, strides, storage, offset, nbytes, contiguous, _, bits = facts
        if file.format == "safetensors":
            shape, strides = torch_shape(dtype, shape, strides)
        if list(target.shape) != shape or target.dtype != dtype_of(dtype):
            raise ValueError(
                f"tensor {name!r} is {dtype} of shape {shape} in the file, and "
                f"{str(target.dtype)[6:]} of shape {list(target.shape)} in into="
            )
        stored_as = (dtype, storage, offset, shape, strides, bits)
        plain = has_plain_memory(target)
        if plain:
            memory = memory_of(name, target)
            held.append(memory.storage)
            content = (id(file), *_content(target, memory.begin, stored_as))
            filled.append(Filled(name, target, memory.begin, memory.end, content))
        if plain and contiguous and _is_dense(target):
            reads.setdefault(file, []).append((storage, offset, memory.begin, nbytes))
        else:
            later.setdefault(file, []).append((target, stored_as))
    refuse_overlaps(filled)
    try:
        for file, wanted in reads.items():
            file.read(handle, wanted, verify)
        for file, views in later.items():
            views.sort(key=lambda view: view[1][1])
            numbers = sorted({view[1] for _, view in views})
            by_storage = itertools.groupby(views, key=lambda view: view[1][1])
            with torch.no_grad(), contextlib.closing(_read_ahead(file, numbers, verify, handle)) as ahead:
                for (_, same), (_, loaded) in zip(by_storage, ahead, strict=True):
                    for target, (dtype, _, offset, shape, strides, bits) in same:
                        target.copy_(view_of(loaded, dtype, offset, shape, strides, bits))
    finally:
        for target in targets.values():
            if not target.is_inference():
                torch.autograd.graph.increment_version(target)
    return into


def _content(target: Any, begin: int, stored_as: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a target's memory will hold: equal for two whose common elements get the same bytes."""
    _, storage, offset, shape, strides, bits = stored_as
    own = target.stride()
    as_stored = own == tuple(strides) or all(
        size == 1 or ours == theirs for size, ours, theirs in zip(shape, own, strides, strict=True)
    )
    if as_stored and not bits and not target.is_conj() and not target.is_neg():
        return storage, offset - begin  # byte for byte as in the file
    return storage, offset, str(strides), bits, begin, target.shape, own


def _is_dense(target: Any) -> bool:
    """True if the bytes of a plain tensor are its elements in order, on the host."""
    return bool(
        target.device.type == "cpu"
        and target.is_contiguous()
        and not target.is_conj()
        and not target.is_neg()
    )
