#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cross-compiles the library for aarch64, with libdeflate and liburing of that architecture from the
# distribution (downloaded and unpacked under build/, not installed); without io_uring if there is no liburing. The result is not run.
# Usage: tools/build_aarch64.sh, as ./dev test --full does. Needs g++-aarch64-linux-gnu.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
sysroot=$PWD/build/aarch64-sysroot
jobs=${HEADRACE_JOBS:-$(nproc)}

if [[ ! -f $sysroot/usr/lib/aarch64-linux-gnu/libdeflate.a ]]; then
  rm -rf "$sysroot"
  mkdir -p "$sysroot/debs/partial"
  # An apt configuration of its own: the machine's list of architectures stays as it is.
  state=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$sysroot/state"
    -o Dir::State::status="$sysroot/state/status" -o Dir::Cache="$sysroot/cache" -o APT::Sandbox::User=root)
  mkdir -p "$sysroot/state/lists/partial" "$sysroot/cache/archives/partial"
  : >"$sysroot/state/status"
  # A source that does not answer is no reason to stop: what was or was not downloaded decides below.
  apt-get "${state[@]}" update || true
  (cd "$sysroot/debs" && for package in liburing-dev libdeflate-dev libfmt-dev nlohmann-json3-dev; do apt-get "${state[@]}" download $package || true; done)
  for package in "$sysroot"/debs/*.deb; do
    [[ -f $package ]] && dpkg-deb -x "$package" "$sysroot"
  done
fi

uring=ON
if [[ ! -f $sysroot/usr/lib/aarch64-linux-gnu/liburing.a ]]; then
  echo "aarch64: liburing for arm64 could not be had here; building without the io_uring engine"
  uring=OFF
fi
if [[ ! -f $sysroot/usr/lib/aarch64-linux-gnu/libdeflate.a ]]; then
  echo "aarch64: libdeflate for arm64 could not be had here, and headrace needs it"
  exit 1
fi
HEADRACE_AARCH64_SYSROOT=$sysroot \
  cmake --preset aarch64 -DHEADRACE_URING=$uring -DBUILD_SHARED_LIBS=ON
cmake --build --preset aarch64 -j "$jobs"

library=$(find build/aarch64 -name 'libheadrace.so' | head -1)
machine=$(aarch64-linux-gnu-readelf -h "$library" | sed -n 's/.*Machine: *//p')
[[ $machine == AArch64 ]] || {
  echo "aarch64: $library is for '$machine'"
  exit 1
}
echo "aarch64: $library is for $machine, io_uring $uring"
