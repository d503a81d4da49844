#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside a Debian 13 made for it (tools/try_debian13.sh --torch): headrace's tests of checkpoints and of FastPersist's
# writers on Debian's python3-torch. The guide's five lines are put into the installed torch/serialization.py.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3-torch python3-pytest python3-numpy \
  python3-venv python3-dev g++ cmake ninja-build pkg-config libfmt-dev liburing-dev libdeflate-dev nlohmann-json3-dev libcli11-dev \
  libisal2 strace e2fsprogs unzip zip >/dev/null
python3 -m venv --system-site-packages /root/torch-venv
/root/torch-venv/bin/pip install -q scikit-build-core nanobind "$(grep ^safetensors tools/requirements/test.txt)"
/root/torch-venv/bin/pip install -q --no-build-isolation --no-deps .

python=/root/torch-venv/bin/python
$python - <<'HOOK'
import torch, torch.serialization

path = torch.serialization.__file__
text = open(path).read()
loop = "    for key in serialized_storage_keys:\n"
hook = '''    if hasattr(f, "save_torch_storage_object_list"):
        f.save_torch_storage_object_list([serialized_storages[key] for key in serialized_storage_keys], True)
        return
'''
if hook not in text:
    assert text.count(loop) == 1, "the loop that the hook replaces is not there"
    open(path, "w").write(text.replace(loop, hook + loop))
print(f"torch {torch.__version__}, hook in {path}")
HOOK
cd python/tests
$python - <<'SAVE'
import os
import torch
from headrace.fastpersist import FastFileWriter, FastFileWriterConfig

calls = []

class Counting(FastFileWriter):
    def save_torch_storage_object_list(self, storage_obj_list, save_size):
        calls.append((len(storage_obj_list), save_size))
        return super().save_torch_storage_object_list(storage_obj_list, save_size)

obj = {f"layer.{i}": torch.randn(100 + i, 1000) for i in range(50)}
open("hook.pt", "wb").write(os.urandom(1 << 25))
writer = Counting("hook.pt", FastFileWriterConfig(None, torch.empty(64 << 20, dtype=torch.uint8)))
torch.save(obj, writer, _use_new_zipfile_serialization=False)
writer.close()
writer._dump_state()
loaded = torch.load("hook.pt", weights_only=True)
assert calls == [(50, True)], calls
assert loaded.keys() == obj.keys() and all(torch.equal(loaded[key], obj[key]) for key in obj)
os.unlink("hook.pt")
print("an unmodified torch.save called save_torch_storage_object_list once, with 50 storages; torch.load gave them back")
SAVE
$python -m pytest -p no:cacheprovider -m "not slow" -q test_checkpoint*.py test_stream.py test_fastpersist.py \
  test_safetensors*.py test_torch.py
