# SPDX-License-Identifier: Apache-2.0
"""Transfers can be awaited; a task that waits holds no thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
from pathlib import Path

import headrace
import pytest
from support import FrozenFileSystem, random_bytes, wait_until


def test_a_transfer_can_be_awaited(tmp_path: Path, handle: headrace.Handle) -> None:
    async def main() -> None:
        path = tmp_path / "file"
        data = random_bytes(3 << 20)
        assert await handle.write(path, data) == len(data)
        target = bytearray(len(data))
        transfer = handle.read(path, target)
        assert await transfer == len(data)
        assert await transfer == len(data), "twice is as good as once"
        assert target == data

    asyncio.run(main())


def test_many_tasks_await_at_once(tmp_path: Path, engine_handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    data = random_bytes(200 * 5000)

    async def move(number: int) -> bytes:
        piece = data[number * 5000 : (number + 1) * 5000]
        await engine_handle.write(path, piece, offset=number * 5000)
        target = bytearray(5000)
        await engine_handle.read(path, target, offset=number * 5000)
        return bytes(target)

    async def main() -> list[bytes]:
        return await asyncio.gather(*(move(number) for number in range(200)))

    assert b"".join(asyncio.run(main())) == data


def test_an_error_is_raised_where_it_is_awaited(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")

    async def main() -> None:
        await handle.read(path, bytearray(10))

    with pytest.raises(EOFError):
        asyncio.run(main())


def test_two_tasks_and_a_thread_may_wait_for_one_transfer(
    frozen: FrozenFileSystem, handle: headrace.Handle
) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"")
    frozen.freeze()
    transfer = handle.write(path, bytes(1000))

    async def wait() -> int:
        return await transfer

    async def main() -> list[int]:
        tasks = [asyncio.create_task(wait()), asyncio.create_task(wait())]
        in_thread = asyncio.get_running_loop().run_in_executor(None, transfer.result)
        await asyncio.sleep(0)
        frozen.thaw()
        return [*await asyncio.gather(*tasks), await in_thread]

    assert asyncio.run(main()) == [1000, 1000, 1000]


def test_cancelling_a_task_leaves_running_work_alone(
    frozen: FrozenFileSystem, handle: headrace.Handle
) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"")
    frozen.freeze()
    transfer = handle.write(path, bytes(1000))

    async def main() -> None:
        async def wait() -> int:
            return await transfer

        wait_until(transfer.running)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait(), timeout=0.05)

    asyncio.run(main())
    assert not transfer.done()
    frozen.thaw()
    assert transfer.result(timeout=30) == 1000


def test_a_loop_that_is_gone_disturbs_nobody(frozen: FrozenFileSystem, handle: headrace.Handle) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"")
    frozen.freeze()
    transfer = handle.write(path, bytes(1000))
    loop = asyncio.new_event_loop()
    steps = transfer.__await__()

    async def begin() -> None:
        next(steps)

    loop.run_until_complete(begin())
    loop.close()
    frozen.thaw()
    assert transfer.result(timeout=30) == 1000
    steps.close()


def test_awaiting_a_cancelled_transfer_raises_as_result_does(frozen: FrozenFileSystem) -> None:
    path = frozen.folder / "file"
    path.write_bytes(bytes(10))
    with headrace.Handle(engine="posix", workers=1, queue_depth=1, block_bytes=4096) as h:
        frozen.freeze()
        first = h.write(path, bytes(1 << 20))
        second = h.read(path, bytearray(10))
        assert second.cancel()

        async def main() -> None:
            await second

        with pytest.raises(concurrent.futures.CancelledError):
            asyncio.run(main())
        frozen.thaw()
        first.result()


def test_awaiting_outside_of_a_loop_is_refused(frozen: FrozenFileSystem, handle: headrace.Handle) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"")
    frozen.freeze()
    transfer = handle.write(path, bytes(1000))
    with pytest.raises(RuntimeError, match="no running event loop"):
        next(transfer.__await__())
    frozen.thaw()
