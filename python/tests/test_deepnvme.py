# SPDX-License-Identifier: Apache-2.0
"""headrace.deepnvme moves the right bytes, and returns what DeepSpeed's handles return."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from headrace import deepnvme  # noqa: E402

BLOCK = 4096
DEPTH = 2
BYTE = torch.empty(0, dtype=torch.uint8)


@pytest.fixture
def handle() -> deepnvme.aio_handle:
    return deepnvme.aio_handle(BLOCK, DEPTH, False, True, 2)


def random_bytes(count: int, seed: int = 0) -> Any:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def locked_copy(handle: deepnvme.aio_handle, data: Any) -> Any:
    return handle.new_cpu_locked_tensor(data.numel(), data).copy_(data)


# ---- any size, shape, dtype and offset ----

SIZES = [0, 1, 511, 512, 513, 4095, 4096, 4097, BLOCK * DEPTH * 2 + 3, 1 << 20, (1 << 20) + 1000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("locked", [True, False], ids=["locked", "ordinary"])
@pytest.mark.parametrize("parallel", [1, 4])
def test_any_size_arrives_whole_in_both_directions(
    tmp_path: Path, size: int, locked: bool, parallel: int
) -> None:
    handle = deepnvme.aio_handle(BLOCK, DEPTH, intra_op_parallelism=parallel)
    file = str(tmp_path / "file")
    data = random_bytes(size)
    source = locked_copy(handle, data) if locked else data
    assert handle.sync_pwrite(source, file) == 1
    assert os.path.getsize(file) == size
    assert Path(file).read_bytes() == data.numpy().tobytes()
    target = locked_copy(handle, torch.zeros_like(data)) if locked else torch.zeros_like(data)
    assert handle.sync_pread(target, file) == 1
    assert torch.equal(target, data)


@pytest.mark.parametrize("offset", [0, 1, 511, 512, 1000, 4095, 4096, 5000])
@pytest.mark.parametrize("place", [0, 1, 64, 1024])
@pytest.mark.parametrize("size", [1, 700, 5120, 70_001])
def test_any_offset_in_file_and_memory_leaves_the_rest_alone(
    handle: deepnvme.aio_handle, tmp_path: Path, offset: int, place: int, size: int
) -> None:
    before = random_bytes(100_000, 1)
    file = tmp_path / "file"
    file.write_bytes(before.numpy().tobytes())
    memory = locked_copy(handle, random_bytes(place + size + 100, 2))
    assert handle.sync_pwrite(memory.narrow(0, place, size), str(file), offset) == 1
    expected = before.clone()
    expected[offset : offset + size] = memory[place : place + size]
    assert file.read_bytes() == expected.numpy().tobytes()
    target = torch.full((place + size + 100,), 7, dtype=torch.uint8)
    assert handle.sync_pread(target.narrow(0, place, size), str(file), offset) == 1
    assert torch.equal(target[place : place + size], memory[place : place + size])
    assert target[:place].eq(7).all()
    assert target[place + size :].eq(7).all()


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 7, 11), (0, 4)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64, torch.complex64]
)
def test_any_shape_and_dtype_works_unpinned(
    handle: deepnvme.aio_handle, tmp_path: Path, shape: tuple[int, ...], dtype: Any
) -> None:
    file = str(tmp_path / "file")
    data = (torch.rand(shape) * 10 > 5).to(dtype)
    assert handle.async_pwrite(data, file) == 0
    assert handle.wait() == 1
    target = torch.zeros(shape, dtype=dtype)
    assert handle.async_pread(target, file) == 0
    assert handle.wait() == 1
    assert torch.equal(target.to(torch.complex64), data.to(torch.complex64))


def test_tensors_with_gaps_are_moved_as_their_values(handle: deepnvme.aio_handle, tmp_path: Path) -> None:
    file = str(tmp_path / "file")
    data = torch.arange(60.0).reshape(6, 10)
    assert handle.sync_pwrite(data.t(), file) == 1
    assert Path(file).read_bytes() == data.t().contiguous().numpy().tobytes()
    target = torch.full((6, 20), -1.0)
    every_second = target[:, ::2].t()
    assert handle.pread(every_second, file, True, True) == 0
    assert handle.wait() == 1
    assert torch.equal(target[:, ::2], data)
    assert target[:, 1::2].eq(-1).all()


def test_a_leaf_that_requires_grad_is_read_into(handle: deepnvme.aio_handle, tmp_path: Path) -> None:
    file = str(tmp_path / "file")
    handle.sync_pwrite(torch.arange(10.0), file)
    parameter = torch.nn.Parameter(torch.zeros(10))
    assert handle.sync_pread(parameter, file) == 1
    assert torch.equal(parameter.detach(), torch.arange(10.0))
    gaps = torch.zeros(20, requires_grad=True)
    with torch.no_grad():
        assert handle.sync_pread(gaps[::2], file) == 1
    assert torch.equal(gaps.detach()[::2], torch.arange(10.0))


def test_ranges_beyond_two_gib_of_a_sparse_file(handle: deepnvme.aio_handle, tmp_path: Path) -> None:
    file = str(tmp_path / "file")
    data = random_bytes(10_001)
    offset = (5 << 30) + 12_345
    assert handle.sync_pwrite(data, file, offset) == 1
    assert os.path.getsize(file) == offset + 10_001
    target = torch.empty_like(data)
    assert handle.sync_pread(target, file, offset) == 1
    assert torch.equal(target, data)


@pytest.mark.slow
def test_one_tensor_of_more_than_two_gib(tmp_path: Path) -> None:
    handle = deepnvme.aio_handle(16 << 20, 128)  # block_size x queue_depth is 2 GiB
    size = 0x7FFFF000 + 4097
    data = torch.zeros(size, dtype=torch.uint8)
    data[::4099] = 1
    file = str(tmp_path / "file")
    assert handle.sync_pwrite(data, file) == 1
    assert os.path.getsize(file) == size
    target = torch.empty_like(data)
    assert handle.sync_pread(target, file) == 1
    assert torch.equal(target, data)


def test_a_block_size_times_queue_depth_of_two_gib_is_safe(tmp_path: Path) -> None:
    handle = deepnvme.aio_handle(16 << 20, 128)
    file = str(tmp_path / "file")
    data = random_bytes(40 << 20)
    assert handle.sync_pwrite(data, file) == 1
    memory = torch.full((6 << 20,), 3, dtype=torch.uint8)
    assert handle.sync_pread(memory[: 4 << 20], file) == 1
    assert torch.equal(memory[: 4 << 20], data[: 4 << 20])
    assert memory[4 << 20 :].eq(3).all()


# ---- return values ----


def test_wait_with_nothing_pending_returns_zero(handle: deepnvme.aio_handle, tmp_path: Path) -> None:
    assert handle.wait() == 0
    handle.async_pwrite(random_bytes(10), str(tmp_path / "file"))
    assert handle.wait() == 1
    assert handle.wait() == 0


def test_a_sync_call_completes_and_counts_what_is_pending(
    handle: deepnvme.aio_handle, tmp_path: Path
) -> None:
    data = random_bytes(5000)
    assert handle.async_pwrite(data, str(tmp_path / "a")) == 0
    assert handle.async_pwrite(data, str(tmp_path / "b")) == 0
    target = torch.empty_like(data)
    assert handle.sync_pread(target, str(tmp_path / "a")) == 3
    assert torch.equal(target, data)
    assert handle.wait() == 0


def test_read_and_write_return_zero_and_leave_pending_ones_alone(
    handle: deepnvme.aio_handle, tmp_path: Path
) -> None:
    data = random_bytes(3000)
    handle.async_pwrite(data, str(tmp_path / "a"))
    assert handle.write(data, str(tmp_path / "b"), False) == 0
    target = torch.zeros(2000, dtype=torch.uint8)
    assert handle.read(target, str(tmp_path / "b"), True, 1000) == 0
    assert torch.equal(target, data[1000:])
    assert handle.wait() == 1


def test_pread_and_pwrite_take_async_by_position_and_by_name(
    handle: deepnvme.aio_handle, tmp_path: Path
) -> None:
    file = str(tmp_path / "file")
    data = random_bytes(9000)
    target = torch.zeros_like(data)
    assert handle.pwrite(data, file, False, True) == 0
    assert handle.pwrite(buffer=data, filename=file, validate=False, **{"async": True}, file_offset=9000) == 0
    assert handle.wait() == 2
    assert handle.pwrite(data, file, True, False, 18_000) == 1
    assert handle.pread(target, file, True, False) == 1
    assert torch.equal(target, data)
    target.zero_()
    assert handle.pread(target, file, False, **{"file_offset": 18_000, "async": True}) == 0
    assert handle.wait() == 1
    assert torch.equal(target, data)


def test_async_pwrite_takes_a_file_name_or_a_descriptor(handle: deepnvme.aio_handle, tmp_path: Path) -> None:
    data = random_bytes(1000)
    file = tmp_path / "file"
    assert handle.async_pwrite(data, str(file), 0) == 0
    fd = os.open(file, os.O_RDWR)
    try:
        assert handle.async_pwrite(data, fd, 1000) == 0
        assert handle.async_pwrite(buffer=data, fd=fd, file_offset=2000) == 0
        assert handle.async_pwrite(buffer=data, filename=str(file), file_offset=3000) == 0
        assert handle.wait() == 4
        assert os.fstat(fd).st_size == 4000
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0
    finally:
        os.close(fd)
    assert file.read_bytes() == data.numpy().tobytes() * 4


def test_a_descriptor_opened_for_direct_io_works_for_any_size(
    handle: deepnvme.aio_handle, tmp_path: Path
) -> None:
    data = random_bytes(5001)
    file = tmp_path / "file"
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | getattr(os, "O_DIRECT", 0), 0o600)
    try:
        assert handle.async_pwrite(data, fd, 3) == 0
    finally:
        os.close(fd)
    assert handle.wait() == 1
    assert file.read_bytes() == bytes(3) + data.numpy().tobytes()


def test_a_descriptor_that_appends_is_refused(handle: deepnvme.aio_handle, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        with pytest.raises(ValueError, match="O_APPEND"):
            handle.async_pwrite(random_bytes(10), fd)
    finally:
        os.close(fd)


def test_a_shorter_rewrite_keeps_the_tail(handle: deepnvme.aio_handle, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 5000)
    assert handle.sync_pwrite(torch.zeros(100, dtype=torch.uint8), str(file)) == 1
    assert file.read_bytes() == bytes(100) + b"x" * 4900


def test_paths_may_be_bytes_and_path_objects(handle: deepnvme.aio_handle, tmp_path: Path) -> None:
    data = random_bytes(100)
    name = tmp_path / "datei-\N{SNOWMAN} und"
    assert handle.sync_pwrite(data, name) == 1
    target = torch.empty_like(data)
    assert handle.sync_pread(target, os.fsencode(name)) == 1
    assert torch.equal(target, data)


# ---- order ----


def test_operations_on_the_same_bytes_of_a_file_keep_their_order(
    handle: deepnvme.aio_handle, tmp_path: Path
) -> None:
    file = str(tmp_path / "file")
    link = tmp_path / "link"
    for round_number in range(20):
        first = random_bytes(300_000, round_number)
        second = random_bytes(1000, round_number + 100)
        target = torch.zeros_like(first)
        handle.async_pwrite(first, file)
        if not link.exists():
            link.symlink_to(file)
        handle.async_pwrite(second, str(link), 150_000)
        handle.async_pread(target, file)
        handle.async_pwrite(torch.zeros_like(first), file)
        assert handle.wait() == 4
        first[150_000:151_000] = second
        assert torch.equal(target, first)
        assert not any(Path(file).read_bytes())


def test_operations_on_the_same_memory_keep_their_order(handle: deepnvme.aio_handle, tmp_path: Path) -> None:
    for size in (10, 500_000):
        a, b = random_bytes(size, 1), random_bytes(size, 2)
        handle.sync_pwrite(a, str(tmp_path / "a"))
        handle.sync_pwrite(b, str(tmp_path / "b"))
        memory = handle.new_cpu_locked_tensor(size, BYTE)
        handle.async_pread(memory, str(tmp_path / "a"))
        handle.async_pwrite(memory, str(tmp_path / "copy of a"))
        handle.async_pread(memory, str(tmp_path / "b"))
        assert handle.wait() == 3
        assert torch.equal(memory, b)
        assert (tmp_path / "copy of a").read_bytes() == a.numpy().tobytes()


def test_the_order_is_kept_and_forgotten_where_the_handle_is_never_idle(tmp_path: Path) -> None:
    handle = deepnvme.aio_handle()
    file = str(tmp_path / "file")
    data, target = torch.zeros(5000, dtype=torch.uint8), torch.zeros(5000, dtype=torch.uint8)
    for turn in range(2000):
        data.fill_(turn % 251)
        handle.async_pwrite(data, file)
        handle.async_pread(target, file)
        assert handle.read(target, file, False) == 0  # after both, which stay pending
        assert target.eq(turn % 251).all()
    assert handle._pending._order._size < 1100
    assert handle.wait() == 4000


def test_many_pending_operations_complete_with_one_wait(tmp_path: Path) -> None:
    handle = deepnvme.aio_handle(queue_depth=1)
    file = str(tmp_path / "file")
    data = handle.new_cpu_locked_tensor(10_000 * 512, BYTE).copy_(random_bytes(10_000 * 512))
    for index in torch.randperm(10_000).tolist():
        assert handle.async_pwrite(data[index * 512 : index * 512 + 512], file, index * 512) == 0
    assert handle.wait() == 10_000
    assert Path(file).read_bytes() == data.numpy().tobytes()


def test_a_buffer_that_python_dropped_is_written_all_the_same(
    handle: deepnvme.aio_handle, tmp_path: Path
) -> None:
    for index in range(50):
        handle.async_pwrite(torch.full((100_000,), index, dtype=torch.uint8), str(tmp_path / str(index)))
    gc.collect()
    assert handle.wait() == 50
    for index in range(50):
        assert set((tmp_path / str(index)).read_bytes()) == {index}


# ---- locked tensors ----


def test_a_locked_tensor_is_known_to_all_handles_with_its_views(handle: deepnvme.aio_handle) -> None:
    other, pins = deepnvme.aio_handle(), deepnvme.pin_handle()
    tensor = handle.new_cpu_locked_tensor(1000, torch.empty(3, 4, dtype=torch.float16))
    assert (tensor.shape, tensor.dtype, tensor.device.type) == ((1000,), torch.float16, "cpu")
    assert not tensor.requires_grad
    assert tensor.data_ptr() % 4096 == 0
    for someone in (handle, other, pins):
        assert someone.is_pinned(tensor)
        assert someone.is_pinned(tensor.narrow(0, 10, 20))
        assert someone.is_pinned(tensor.view(10, 100)[:, ::2])
        assert not someone.is_pinned(torch.empty(10))
    from_pins = pins.new_cpu_locked_tensor(num_elem=7, example_tensor=BYTE)
    assert handle.is_pinned(from_pins)
    assert handle.free_cpu_locked_tensor(from_pins) is True
    assert pins.free_cpu_locked_tensor(locked_tensor=tensor) is True
    for someone in (handle, other, pins):
        assert not someone.is_pinned(tensor)


def test_is_pinned_sees_aliases_made_outside_torch(handle: deepnvme.aio_handle) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    tensor = handle.new_cpu_locked_tensor(1000, BYTE)
    alias = torch.from_numpy(tensor.numpy()[100:200])
    assert handle.is_pinned(alias)


def test_free_answers_false_for_what_is_not_its_own(handle: deepnvme.aio_handle) -> None:
    tensor = handle.new_cpu_locked_tensor(100, example_tenosr=BYTE)
    assert handle.free_cpu_locked_tensor(torch.empty(100)) is False
    assert handle.free_cpu_locked_tensor(tensor[1:]) is False
    assert handle.free_cpu_locked_tensor(tensor[:50]) is True  # starts where the tensor does
    assert handle.free_cpu_locked_tensor(tensor) is False
    tensor.fill_(5)  # the memory is there as long as somebody sees it
    assert int(tensor.sum()) == 500
    pins = deepnvme.pin_handle()
    address = pins.new_cpu_locked_tensor(100, BYTE).data_ptr()
    assert pins.free_cpu_locked_tensor_by_ptr(address) is False  # died already
    kept = pins.new_cpu_locked_tensor(100, BYTE)
    assert pins.free_cpu_locked_tensor_by_ptr(kept.data_ptr()) is True
    assert pins.free_cpu_locked_tensor_by_ptr(kept.data_ptr()) is False
    assert pins.free_cpu_locked_tensor_by_ptr(0) is False


def test_locked_memory_is_freed_with_its_last_view(handle: deepnvme.aio_handle) -> None:
    def locked_kib() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmLck"))

    def mapped_kib() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmSize"))

    def use_one() -> None:
        view = handle.new_cpu_locked_tensor(1 << 20, torch.empty(0, dtype=torch.float32))[5:]
        assert handle.is_pinned(view)

    use_one()
    locked, mapped = locked_kib(), mapped_kib()
    for _ in range(100):
        use_one()
    assert locked_kib() <= locked
    assert mapped_kib() <= mapped + 50 * 4096


def test_a_locked_tensor_of_no_elements_works(handle: deepnvme.aio_handle, tmp_path: Path) -> None:
    tensor = handle.new_cpu_locked_tensor(0, BYTE)
    assert tensor.numel() == 0
    assert handle.sync_pwrite(tensor, str(tmp_path / "empty")) == 1
    assert (tmp_path / "empty").read_bytes() == b""
    assert handle.is_pinned(tensor) is False
    assert handle.free_cpu_locked_tensor(tensor) is False


def test_a_tensor_torch_cannot_pin_is_simply_not_pinned(handle: deepnvme.aio_handle) -> None:
    assert handle.is_pinned(torch.empty(4, device="meta")) is False
    assert handle.is_pinned(torch.eye(3).to_sparse()) is False


def test_locked_tensors_have_their_dtype_where_constructors_are_replaced(
    handle: deepnvme.aio_handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_half(*size: Any, **options: Any) -> Any:  # as DeepSpeed's zero.Init does
        return torch.tensor([], dtype=torch.float16)

    example = torch.zeros(0, dtype=torch.float64)
    for name in ("empty", "zeros", "ones", "full"):
        monkeypatch.setattr(torch, name, in_half)
    with torch.device("meta"):
        for count in (0, 10):
            tensor = handle.new_cpu_locked_tensor(count, example)
            assert (tensor.dtype, tensor.device.type, tensor.shape) == (torch.float64, "cpu", (count,))
            assert tensor._base is None


# ---- the functions of the module ----


def test_aio_write_and_aio_read_move_a_whole_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "file")
    data = random_bytes(10_010).reshape(7, -1)[:, :1000].contiguous()
    assert deepnvme.aio_write(data, file, 4096, 8, False, True, True) == 0
    target = torch.zeros_like(data)
    assert deepnvme.aio_read(target, file, 4096, 8, True, False, True) == 0
    assert torch.equal(target, data)
    assert capfd.readouterr() == ("", "")


def test_the_examples_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "deepnvme.md"
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    own = [example for example in examples if "integrations" not in example]
    assert own
    monkeypatch.chdir(tmp_path)
    for example in own:
        exec(compile(example, str(page), "exec"), {})


def test_deepspeed_memcpy_copies_every_byte_of_any_shape_and_dtype() -> None:
    source = torch.arange(32.0).reshape(4, 8)
    target = torch.zeros(4, 8)
    assert deepnvme.deepspeed_memcpy(target, source) == 0
    assert torch.equal(target, source)
    as_bytes = torch.zeros(128, dtype=torch.uint8)
    assert deepnvme.deepspeed_memcpy(as_bytes, source) == 0
    assert torch.equal(as_bytes.view(torch.float32), source.flatten())
    half = torch.zeros(8, 4)
    assert deepnvme.deepspeed_memcpy(half.t(), source) == 0
    assert torch.equal(half.t(), source)
    assert deepnvme.deepspeed_memcpy(torch.empty(0), torch.empty(0, dtype=torch.int8)) == 0
    with pytest.raises(ValueError, match="128 bytes and src has 64"):
        deepnvme.deepspeed_memcpy(target, source[:2])
    with pytest.raises(ValueError, match="contiguous"):
        deepnvme.deepspeed_memcpy(half.t(), source.flatten())
