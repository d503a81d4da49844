# SPDX-License-Identifier: Apache-2.0
"""torch tensors: their bytes where that is their value, their values where they are strided, and refusals
by name."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import headrace
import pytest
from support import FrozenFileSystem, is_mapped

torch = pytest.importorskip("torch")

NAMES = """
    uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64 complex128 bool uint16
    uint32
    uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu
"""
DTYPES = [name for name in NAMES.split() if hasattr(torch, name)]


def raw(tensor: Any) -> bytes:
    """The bytes of a contiguous tensor."""
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_makes_the_round_trip(tmp_path: Path, handle: headrace.Handle, name: str) -> None:
    dtype = getattr(torch, name)
    size = dtype.itemsize
    tensor = torch.randint(0, 2 if name == "bool" else 255, (3, 5, 7 * size), dtype=torch.uint8).view(dtype)
    assert handle.write(tmp_path / name, tensor).result() == 3 * 5 * 7 * size
    target = torch.zeros(3, 5, 7, dtype=torch.uint8).repeat(1, 1, size).view(dtype)
    assert handle.read(tmp_path / name, target).result() == 3 * 5 * 7 * size
    assert raw(target) == raw(tensor) == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_empty_and_scalar_tensors_work(
    tmp_path: Path, handle: headrace.Handle, shape: tuple[int, ...]
) -> None:
    """safetensors #442: an empty range treated as an error."""
    tensor = torch.ones(shape)
    size = tensor.numel() * 4
    assert handle.write(tmp_path / "file", tensor).result() == size
    target = torch.zeros(shape)
    assert handle.read(tmp_path / "file", target).result() == size
    assert torch.equal(target, tensor)
    assert target.shape == shape
    results = handle.read_many(
        [
            (tmp_path / "file", torch.zeros(0)),
            (tmp_path / "file", target),
            (tmp_path / "file", torch.zeros(2, 0)),
        ]
    )
    assert [t.result() for t in results] == [0, size, 0]


def strided() -> dict[str, Any]:
    x = torch.arange(240, dtype=torch.float32).reshape(2, 4, 5, 6)
    return {
        "transposed": x.reshape(12, 20).t(),
        "channels_last": x.to(memory_format=torch.channels_last),
        "expanded": torch.arange(5.0).expand(3, 5),
        "every other": x.reshape(-1)[::2],
        "rows": x.reshape(12, 20)[:, 3:9],
        "permuted": x.permute(3, 1, 0, 2),
        "overlapping windows": torch.arange(10.0).unfold(0, 4, 1),
    }


@pytest.mark.parametrize("name", list(strided()))
def test_strided_tensors_are_written_as_their_values_and_refused_as_targets(
    tmp_path: Path, handle: headrace.Handle, name: str
) -> None:
    """safetensors #308, #469: non-contiguous tensors written in storage order."""
    tensor = strided()[name]
    handle.write(tmp_path / "file", tensor).result()
    assert (tmp_path / "file").read_bytes() == raw(tensor.contiguous())
    before = tensor.clone()
    with pytest.raises(ValueError, match=r"contiguous|overlap"):
        handle.read(tmp_path / "file", tensor)
    assert torch.equal(tensor, before)


def test_the_refusal_of_an_expanded_target_says_what_to_do(tmp_path: Path, handle: headrace.Handle) -> None:
    (tmp_path / "file").write_bytes(bytes(60))
    tensor = torch.arange(5.0).expand(3, 5)
    with pytest.raises(ValueError, match=r"expanded .* tensor of its own, such as copy = t\.contiguous\(\)"):
        handle.read(tmp_path / "file", tensor)
    copy = tensor.contiguous()
    assert handle.read(tmp_path / "file", copy).result() == 60
    assert not copy.any()


def test_a_strided_copy_lives_until_its_write_is_done(
    frozen: FrozenFileSystem, engine_handle: headrace.Handle
) -> None:
    tensor = torch.randn(512, 1024)
    path = frozen.folder / "file"
    path.write_bytes(b"")
    frozen.freeze()
    transfer = engine_handle.write(path, tensor.t())
    gc.collect()
    noise = [torch.zeros(1024, 512) for _ in range(8)]
    frozen.thaw()
    transfer.result()
    assert path.read_bytes() == raw(tensor.t().contiguous())
    assert len(noise) == 8


def test_conjugate_and_negative_views_are_resolved_on_write_and_refused_on_read(
    tmp_path: Path, handle: headrace.Handle
) -> None:
    x = torch.randn(7, dtype=torch.complex64)
    for view in (x.conj(), x.conj().imag, torch._neg_view(torch.randn(5))):
        handle.write(tmp_path / "file", view, mode="truncate").result()
        values = view.resolve_conj().resolve_neg().contiguous()
        assert (tmp_path / "file").read_bytes() == raw(values)
    for view in (x.conj(), torch._neg_view(torch.randn(5))):
        with pytest.raises(ValueError, match="conjugate or negative"):
            handle.read(tmp_path / "file", view)


def refused() -> dict[str, tuple[Any, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these layouts are prototypes
        resized = torch.zeros(10)
        resized.untyped_storage().resize_(0)
        shrunk = torch.zeros(10)
        shrunk.untyped_storage().resize_(8)
        return {
            "meta": (torch.empty(3, device="meta"), "meta"),
            "sparse": (torch.eye(3).to_sparse(), "sparse"),
            "csr": (torch.eye(3).to_sparse_csr(), "sparse"),
            "nested": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
            "mkldnn": (torch.ones(3).to_mkldnn(), "mkldnn"),
            "freed storage": (resized, "storage"),
            "shrunk storage": (shrunk, "storage"),
        }


@pytest.mark.parametrize("name", list(refused()))
def test_tensors_without_host_bytes_are_refused_by_name(
    tmp_path: Path, handle: headrace.Handle, name: str
) -> None:
    tensor, word = refused()[name]
    (tmp_path / "file").write_bytes(bytes(1000))
    for start in (handle.read, handle.write):
        with pytest.raises(ValueError, match=word):
            start(tmp_path / "file", tensor)
    assert (tmp_path / "file").read_bytes() == bytes(1000)


def test_a_gpu_tensor_is_refused_with_a_clear_message(tmp_path: Path, handle: headrace.Handle) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    (tmp_path / "file").write_bytes(bytes(1000))
    with FakeTensorMode(allow_non_fake_inputs=True):
        pretended = torch.empty(3, device="cuda")
        on_cpu = torch.empty(3)
    with pytest.raises(ValueError, match="GPU memory is not supported"):
        handle.read(tmp_path / "file", pretended)
    with pytest.raises((ValueError, TypeError)):
        handle.read(tmp_path / "file", on_cpu)


def test_reading_bumps_the_version_that_autograd_checks(tmp_path: Path, handle: headrace.Handle) -> None:
    (tmp_path / "file").write_bytes(bytes(12))
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * weight).sum()
    before = weight._version
    handle.read(tmp_path / "file", weight.detach()).result()
    assert weight._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    handle.write(tmp_path / "file", weight).result()
    bumped = weight._version
    handle.write(tmp_path / "file", weight).result()
    assert weight._version == bumped


def test_parameters_and_inference_tensors_can_be_read_into(tmp_path: Path, handle: headrace.Handle) -> None:
    (tmp_path / "file").write_bytes(raw(torch.arange(6.0)))
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    handle.read(tmp_path / "file", parameter).result()
    assert torch.equal(parameter.detach().reshape(-1), torch.arange(6.0))
    with torch.inference_mode():
        tensor = torch.zeros(6)
    handle.read(tmp_path / "file", tensor).result()
    assert torch.equal(tensor, torch.arange(6.0))


def test_replacing_the_data_of_a_tensor_does_not_free_what_the_kernel_uses(
    frozen: FrozenFileSystem, engine_handle: headrace.Handle
) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"")
    tensor = torch.randn(1 << 20)
    expected = raw(tensor)
    frozen.freeze()
    transfer = engine_handle.write(path, tensor)
    tensor.data = torch.zeros(1)
    noise = [torch.zeros(1 << 20) for _ in range(4)]
    frozen.thaw()
    assert transfer.result() == 4 << 20
    assert path.read_bytes() == expected
    assert len(noise) == 4


def test_default_device_and_dtype_change_nothing(tmp_path: Path, handle: headrace.Handle) -> None:
    """safetensors #503: the default device decided where tensors went."""
    source = torch.arange(6.0).reshape(2, 3)
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        handle.write(tmp_path / "file", source.t()).result()
        made = headrace.torch.empty(3, 2, dtype=torch.float32)
        handle.read(tmp_path / "file", made).result()
        nothing = headrace.torch.empty(0, dtype=torch.int8)
        default = headrace.torch.empty(2)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert torch.equal(made, source.t())
    assert (made.device.type, nothing.device.type, default.device.type) == ("cpu", "cpu", "cpu")
    assert (made.dtype, nothing.dtype, default.dtype) == (torch.float32, torch.int8, torch.float64)


@pytest.mark.parametrize("name", DTYPES)
def test_empty_makes_tensors_of_every_dtype(name: str) -> None:
    dtype = getattr(torch, name)
    tensor = headrace.torch.empty(3, 4, dtype=dtype)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((3, 4), dtype, True)
    assert raw(tensor) == bytes(12 * dtype.itemsize)
    assert headrace.torch.empty((2, 0, 5), dtype=dtype).shape == (2, 0, 5)
    assert headrace.torch.empty(dtype=dtype).shape == ()


def test_empty_refuses_what_torch_refuses() -> None:
    assert headrace.torch.empty(torch.Size([2, 3])).dtype == torch.float32
    for size in ((-1,), ("a",), (1.5,)):
        with pytest.raises((TypeError, ValueError)):
            headrace.torch.empty(*size)
    with pytest.raises(MemoryError):
        headrace.torch.empty(1 << 60)


def test_empty_makes_cpu_tensors_only_and_says_what_to_do_for_a_gpu() -> None:
    for device in ("cpu", torch.device("cpu"), None):
        assert headrace.torch.empty(3, device=device).device.type == "cpu"
    for device in ("cuda", "cuda:1", torch.device("cuda", 0)):
        with pytest.raises(ValueError, match=r"GPU memory is not supported yet.*\.to\('cuda"):
            headrace.torch.empty(3, device=device)
    with pytest.raises(ValueError, match="CPU tensors"):
        headrace.torch.empty(3, device="meta")


def test_memory_of_empty_is_freed_with_the_last_view(tmp_path: Path, handle: headrace.Handle) -> None:
    size = 128 << 20
    tensor = headrace.torch.empty(size // 4, dtype=torch.float32)
    address = tensor.data_ptr()
    view = tensor[100:].view(torch.int32)
    view.fill_(7)
    del tensor
    gc.collect()
    assert is_mapped(address, size)
    assert view[0] == 7
    del view
    gc.collect()
    assert not is_mapped(address, size)
    again = headrace.torch.empty(1 << 20, dtype=torch.uint8)
    again.fill_(3)
    transfer = handle.write(tmp_path / "file", again)
    transfer.result()
    assert transfer.route is not None
    assert transfer.route.staged_bytes == 0


def test_a_buffer_is_seen_by_torch_without_a_copy() -> None:
    buffer = headrace.Buffer(1000)
    tensor = torch.from_dlpack(buffer)
    assert (tensor.dtype, tensor.shape, tensor.data_ptr()) == (torch.uint8, (1000,), buffer.address)
    tensor[5] = 9
    assert buffer[5] == 9
    assert torch.frombuffer(buffer, dtype=torch.uint8)[5] == 9
    del buffer
    gc.collect()
    assert tensor[5] == 9
