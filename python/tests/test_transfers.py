# SPDX-License-Identifier: Apache-2.0
"""Bytes arrive whole and in place: every size, offset, pointer, engine and form of file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import headrace
import pytest
from support import evict, random_bytes

BLOCK = 64 << 10
DEPTH = 4
SIZES = [0, 1, 511, 512, 513, 4095, 4096, 4097, BLOCK + 1, BLOCK * DEPTH + 3, 3 * BLOCK * DEPTH + 4099]


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("size", SIZES)
def test_any_size_comes_back_whole(tmp_path: Path, engine: str, workers: int, size: int) -> None:
    """DeepSpeed #1070: the ragged end of an asynchronous write was lost."""
    path = tmp_path / "file"
    data = random_bytes(size)
    with headrace.Handle(engine=engine, workers=workers, block_bytes=BLOCK, queue_depth=DEPTH) as h:
        transfer = h.write(path, data)
        assert transfer.result() == size
        assert path.stat().st_size == size
        assert path.read_bytes() == data
        evict(path)
        target = bytearray(size)
        assert h.read(path, target).result() == size
        assert target == data


def test_any_offset_and_pointer_comes_back_whole(tmp_path: Path, engine_handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    original = random_bytes(3 << 20)
    path.write_bytes(original)
    for pointer, offset, length in [
        (0, 0, 1 << 20),
        (1, 3, 1 << 20),
        (64, 4096, 99_999),
        (512, 512, 4096),
        (7, 8191, 2),
    ]:
        evict(path)
        memory = bytearray(2 << 20)
        view = memoryview(memory)[pointer : pointer + length]
        assert engine_handle.read(path, view, offset=offset).result() == length
        assert view == original[offset : offset + length]
        assert not any(memory[:pointer])
        assert not any(memory[pointer + length :])


def test_a_write_touches_no_byte_outside_its_range(tmp_path: Path, engine_handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    expected = bytearray(random_bytes(1 << 20))
    path.write_bytes(expected)
    for offset, length in [(0, 1), (511, 2), (4095, 4098), (100_000, 300_001), ((1 << 20) - 3, 3)]:
        data = random_bytes(length, seed=offset + 7)
        assert engine_handle.write(path, data, offset=offset).result() == length
        expected[offset : offset + length] = data
    assert path.read_bytes() == expected


def test_a_write_past_the_end_grows_the_file_and_leaves_a_hole(
    tmp_path: Path, engine_handle: headrace.Handle
) -> None:
    path = tmp_path / "file"
    engine_handle.write(path, b"end", offset=100_001).result()
    assert path.read_bytes() == bytes(100_001) + b"end"


@pytest.mark.parametrize("copy", ["auto", "always", "never"])
@pytest.mark.parametrize("cache", ["auto", "use", "bypass"])
def test_copy_and_cache_change_the_route_and_not_the_bytes(
    tmp_path: Path, handle: headrace.Handle, copy: str, cache: str
) -> None:
    path = tmp_path / "file"
    data = random_bytes((2 << 20) + 17)
    handle.write(path, data, copy=copy).result()
    evict(path)
    target = bytearray(len(data))
    transfer = handle.read(path, target, copy=copy, cache=cache)
    assert transfer.result() == len(data)
    assert target == data
    assert transfer.route is not None
    if cache == "use":
        assert not transfer.route.direct


def test_a_buffer_goes_without_a_copy_and_other_memory_is_staged(
    tmp_path: Path, handle: headrace.Handle
) -> None:
    path = tmp_path / "file"
    size = 8 << 20
    path.write_bytes(random_bytes(size))
    evict(path)
    buffer = headrace.Buffer(size)
    straight = handle.read(path, buffer)
    straight.result()
    evict(path)
    staged = handle.read(path, memoryview(bytearray(size + 1))[1:])
    staged.result()
    assert bytes(buffer) == path.read_bytes()
    assert straight.route is not None
    assert staged.route is not None
    assert straight.route.direct_bytes == size
    assert straight.route.staged_bytes == 0
    assert staged.route.staged_bytes == size
    assert staged.route.why


def test_a_request_gathers_from_and_scatters_to_many_regions(
    tmp_path: Path, engine_handle: headrace.Handle
) -> None:
    path = tmp_path / "file"
    parts = [random_bytes(n, seed=n) for n in (1, 0, 4096, 100_003, 7)]
    engine_handle.write(path, parts, offset=5).result()
    assert path.read_bytes() == bytes(5) + b"".join(parts)
    targets = [bytearray(len(part)) for part in reversed(parts)]
    engine_handle.read(path, targets, offset=5).result()
    assert b"".join(targets) == b"".join(parts)


def test_bulk_calls_give_one_result_per_item_in_order(tmp_path: Path, engine_handle: headrace.Handle) -> None:
    paths = [tmp_path / f"file{i}" for i in range(7)]
    pieces = [(paths[i % 7], random_bytes(1000 + i, seed=i), (i // 7) * 5000) for i in range(70)]
    written = engine_handle.write_many(pieces)
    assert [t.result() for t in written] == [len(data) for _, data, _ in pieces]
    targets = [bytearray(len(data)) for _, data, _ in pieces]
    items = [(path, target, offset) for (path, _, offset), target in zip(pieces, targets, strict=True)]
    read = engine_handle.read_many(items)
    assert [t.result() for t in read] == [len(data) for _, data, _ in pieces]
    assert targets == [data for _, data, _ in pieces]


def test_empty_bulk_calls_and_items_of_two_work(tmp_path: Path, handle: headrace.Handle) -> None:
    assert handle.write_many([]) == []
    assert handle.read_many(iter(())) == []
    (transfer,) = handle.write_many([(tmp_path / "file", b"abc")])
    assert transfer.result() == 3


@pytest.mark.parametrize("item", ["ab", ("file",), ("file", b"", 0, 0), 7, None])
def test_a_malformed_item_is_refused(handle: headrace.Handle, item: object) -> None:
    with pytest.raises(TypeError, match="an item must be"):
        handle.write_many([item])  # type: ignore[list-item]


def test_a_bulk_call_that_cannot_start_starts_nothing(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    target = bytearray(10)
    with pytest.raises(FileNotFoundError) as caught:
        handle.read_many([(path, target), (tmp_path / "missing", bytearray(3))])
    assert caught.value.filename == tmp_path / "missing"
    assert handle.stats()["requests"] == 0


def test_ten_thousand_requests_through_tiny_queues_all_arrive(tmp_path: Path, engine: str) -> None:
    """liburing #92, #396: more requests than slots."""
    path = tmp_path / "file"
    data = random_bytes(10_000 * 64)
    for depth in (1, 2, 3):
        with headrace.Handle(engine=engine, workers=1, block_bytes=4096, queue_depth=depth) as h:
            items = [(path, data[i * 64 : (i + 1) * 64], i * 64) for i in range(10_000)]
            assert sum(t.result() for t in h.write_many(items)) == len(data)
            evict(path)
            target = bytearray(len(data))
            view = memoryview(target)
            reads = h.read_many([(path, view[i * 64 : (i + 1) * 64], i * 64) for i in range(10_000)])
            assert sum(t.result() for t in reads) == len(data)
            assert target == data


def test_one_big_transfer_through_a_tiny_queue_arrives(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "file"
    data = random_bytes(16 << 20)
    with headrace.Handle(engine=engine, workers=2, block_bytes=4096, queue_depth=2) as h:
        h.write(path, data).result()
        evict(path)
        target = bytearray(len(data))
        h.read(path, target).result()
    assert target == data


def test_a_cold_file_never_stalls(tmp_path: Path, engine_handle: headrace.Handle) -> None:
    """mosquito/caio PR 69: a completion that nobody noticed, on a real disk with a cold cache only."""
    path = tmp_path / "file"
    data = random_bytes(1 << 20)
    path.write_bytes(data)
    for _ in range(50):
        evict(path)
        target = bytearray(len(data))
        transfers = [
            engine_handle.read(path, memoryview(target)[i::1][:4096], offset=i)
            for i in range(0, 1 << 20, 65536)
        ]
        assert all(t.result(timeout=30) == 4096 for t in transfers)


def test_eight_threads_share_one_handle(tmp_path: Path, engine: str) -> None:
    """kvikio PR 1027, DeepSpeed PR 8196; and handles that come and go beside them."""
    failures: list[BaseException] = []

    def work(number: int, h: headrace.Handle) -> None:
        try:
            path = tmp_path / f"file{number}"
            for round_ in range(60):
                data = random_bytes(1 + (number * 7919 + round_ * 104_729) % 200_000, seed=round_)
                if round_ % 3 == 0:
                    writes = h.write_many([(path, data, 0), (path, data, len(data))])
                    assert [w.result() for w in writes] == [len(data)] * 2
                else:
                    assert h.write(path, data).result() == len(data)
                target = bytearray(len(data))
                read = h.read(path, target)
                headrace.wait([read])
                assert read.result() == len(data)
                assert target == data
                if round_ % 20 == 0:
                    with headrace.Handle(engine=engine) as other:
                        other.read(path, target).result()
        except BaseException as error:
            failures.append(error)

    with headrace.Handle(engine=engine) as h:
        threads = [threading.Thread(target=work, args=(number, h)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures


def test_the_null_engine_moves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    with headrace.Handle(engine="null") as h:
        target = bytearray(100)
        transfer = h.read(path, target)
        transfer.result()
        assert transfer.route is not None
        assert transfer.route.engine == "null"
    assert os.path.getsize(path) == 100
