# SPDX-License-Identifier: Apache-2.0
"""Other savers and loaders of checkpoints: torch, safetensors, FastPersist, tensorizer, and the streamers."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from typing import Any

import states
from checkpoint_contender import CheckpointContender, Loader, Saver, Slicer
from contender import Skip
from peer_contenders import load_deepspeed, sync_data
from states import Tensors

FASTPERSIST_BUFFER_BYTES = 64 << 20
# Block size, queue depth, single_submit, overlap_events, threads.
FASTPERSIST_HANDLE = (8 << 20, 8, False, True, 2)
FASTSAFETENSORS_PIECE_BYTES = 256 << 20  # by default each file is one piece, and read by one thread
THREADS = 4  # of tensorizer, which has one by default
DCP_THREADS = 2


class WithPackage(CheckpointContender):
    """Imports `module`, of the distribution `package`, or is skipped."""

    module = ""
    package = ""

    def load(self) -> None:
        super().load()
        try:
            self.library = importlib.import_module(self.module)
        except ImportError as error:
            raise Skip(f"{self.module} cannot be imported: {error}") from error

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), self.package: importlib.metadata.version(self.package)}


class TorchSaver(Saver):
    """torch.save to a path, and a sync. Option: legacy, its older container."""

    def save(self, state: dict[str, Any], path: str) -> None:
        self.torch.save(state, path, _use_new_zipfile_serialization=not self.options.get("legacy"))
        sync_data(path)

    def read_back(self, path: str) -> Tensors:
        return self.torch.load(path, mmap=not self.options.get("legacy"), weights_only=True)


class TorchLoader(Loader):
    """torch.load. Option: mmap."""

    def read(self, path: str) -> Tensors:
        return self.torch.load(path, mmap=bool(self.options.get("mmap")), weights_only=True)


class TorchSlicer(Slicer):
    """torch.load with the file mapped, which reads only the pages that are looked at."""

    def cut(self, path: str, name: str, first: int, last: int) -> Any:
        return self.torch.load(path, mmap=True, weights_only=True)[name][first:last].clone()


class WithSafetensors(WithPackage):
    """Reads or writes safetensors files with the package of that name."""

    module = "safetensors.torch"
    package = "safetensors"


class SafetensorsSaver(WithSafetensors, Saver):
    """save_file, and a sync."""

    def save(self, state: dict[str, Any], path: str) -> None:
        self.library.save_file(state, path)
        sync_data(path)

    def read_back(self, path: str) -> Tensors:
        return self.library.load_file(path)


class SafetensorsLoader(WithSafetensors, Loader):
    """load_file. Option: backend ("pread" copies; by default the file is mapped)."""

    def read(self, path: str) -> Tensors:
        backend = self.options.get("backend")
        return self.library.load_file(path, **({"backend": backend} if backend else {}))


class SafetensorsSlicer(WithSafetensors, Slicer):
    """safe_open and get_slice."""

    def cut(self, path: str, name: str, first: int, last: int) -> Any:
        with self.library.safe_open(path, "pt") as file:
            return file.get_slice(name)[first:last].clone()


class FastPersistSaver(Saver):
    """DeepSpeed's FastFileWriter under torch.save's older container; handle and locked buffer made before."""

    def load(self) -> None:
        super().load()
        try:
            operations = load_deepspeed()
            self._writer = importlib.import_module("deepspeed.io.fast_file_writer")
        except ImportError as error:
            raise Skip(f"deepspeed cannot be imported: {error}") from error
        self._handle = operations.aio_handle(*FASTPERSIST_HANDLE)
        # One of its helpers exists for GPUs only, so that it refuses to run on a CPU: a view does the same.
        torch = self.torch

        class Helpers:
            def load(self) -> type[Helpers]:
                return Helpers

            @staticmethod
            def cast_to_byte_tensor(tensors: list[Any]) -> list[Any]:
                return [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]

        vars(self._writer)["UtilsBuilder"] = Helpers

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "deepspeed": importlib.metadata.version("deepspeed")}

    def open(self) -> None:
        kind = self.torch.empty(0, dtype=self.torch.uint8)
        self._buffer = self._handle.new_cpu_locked_tensor(FASTPERSIST_BUFFER_BYTES, kind)

    def save(self, state: dict[str, Any], path: str) -> None:
        settings = self._writer.FastFileWriterConfig(
            dnvme_handle=self._handle, pinned_tensor=self._buffer, double_buffer=True
        )
        writer = self._writer.FastFileWriter(path, settings)
        self.torch.save(state, f=writer, _use_new_zipfile_serialization=False)
        writer.close()
        sync_data(path)

    def read_back(self, path: str) -> Tensors:
        return self.torch.load(path, weights_only=True)


class DcpSaver(WithPackage, Saver):
    """torch's distributed checkpoint in one process: a folder with a file for each thread, synced."""

    module = "torch.distributed.checkpoint"
    package = "torch"

    def save(self, state: dict[str, Any], path: str) -> None:
        writer = self.library.FileSystemWriter(path, thread_count=DCP_THREADS)
        self.library.save(state, storage_writer=writer, no_dist=True)
        for name in os.listdir(path):
            sync_data(os.path.join(path, name))

    def read_back(self, path: str) -> Tensors:
        found = states.new(self.torch, self.specs)
        self.library.load(found, checkpoint_id=path, no_dist=True)
        return found


class TensorizerSaver(WithPackage, Saver):
    """TensorSerializer, and a sync."""

    module = "tensorizer"
    package = "tensorizer"

    def save(self, state: dict[str, Any], path: str) -> None:
        writer = self.library.TensorSerializer(path)
        writer.write_state_dict(state)
        writer.close()
        sync_data(path)

    def read_back(self, path: str) -> Tensors:
        reader = self.library.TensorDeserializer(path, device="cpu")
        return {name: reader[name].detach() for name in reader}


class TensorizerLoader(WithPackage, Loader):
    """TensorDeserializer."""

    module = "tensorizer"
    package = "tensorizer"

    def read(self, path: str) -> Tensors:
        self._reader = self.library.TensorDeserializer(path, device="cpu", num_readers=THREADS)
        return {name: self._reader[name].detach() for name in self._reader}

    def release(self) -> None:
        self._reader.close()
        del self._reader


class RunaiLoader(WithPackage, Loader):
    """SafetensorsStreamer; since 0.17 its tensors belong to the caller, so nothing is copied again."""

    module = "runai_model_streamer"
    package = "runai-model-streamer"

    def read(self, path: str) -> Tensors:
        with self.library.SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return dict(streamer.get_tensors())


class FastsafetensorsLoader(WithPackage, Loader):
    """Without GPU direct storage, which CPU memory has no use for."""

    module = "fastsafetensors"
    package = "fastsafetensors"

    def read(self, path: str) -> Tensors:
        self._loader = self.library.SafeTensorsFileLoader(
            self.library.SingleGroup(), device="cpu", nogds=True, max_threads=16, bbuf_size_kb=16 * 1024
        )
        self._loader.add_filenames({0: [path]})
        self._files = self._loader.copy_files_to_device(max_copy_block_size=FASTSAFETENSORS_PIECE_BYTES)
        return {name: self._files.get_tensor(name) for name in self._files.key_to_rank_lidx}

    def release(self) -> None:
        self._files.close()
        self._loader.close()
        del self._files, self._loader
