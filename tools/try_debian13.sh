#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs ./dev test in a bare Debian 13 that is made for it, in a fresh clone of the commit checked out here,
# and records what it printed in docs/verification/debian13.txt. With --torch it runs the tests of checkpoints there
# instead, on Debian's own torch 2.6.0 whose serialization.py has the hook of the FastPersist guide, and records
# docs/verification/torch-2.6.txt.
# Usage: tools/try_debian13.sh [--torch] [FOLDER]   (root; FOLDER is build/debian13 if not given, about 5 GB)
# A folder that is there already is used again, with the packages that the last run installed; remove it to
# start from nothing. The package mirror, proxies and certificates of this machine are used inside too.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
what="./dev test in a fresh clone on a bare Debian 13 (tools/try_debian13.sh)"
work='cd /root/headrace && ./dev test' name=debian13
if [[ ${1:-} == --torch ]]; then
  what="the tests of checkpoints on Debian 13's torch, with the FastPersist guide's hook (tools/try_debian13.sh --torch)"
  work='cd /root/headrace && tools/test_debian_torch.sh' name=torch-2.6
  shift
fi
readonly suite=trixie what work record=docs/verification/$name.txt log=build/logs/$name.log
folder=$(realpath -m "${1:-build/debian13}")

die() {
  echo "try_debian13: $*" >&2
  exit 1
}
((EUID == 0)) || die "run it as root: it makes a chroot"
if ! command -v debootstrap >/dev/null; then
  apt-get update || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends debootstrap
fi

# The mirror that this machine takes its own Debian packages from.
mirror=${HEADRACE_DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | head -1)}
[[ -n $mirror ]] || die "apt has no Debian source to take the mirror from; set HEADRACE_DEBIAN_MIRROR"

if [[ ! -e $folder/etc/debian_version ]]; then
  mkdir -p "$folder"
  debootstrap --variant=minbase --include=ca-certificates "$suite" "$folder" "$mirror" >"$folder.debootstrap.log" 2>&1 ||
    die "debootstrap failed, see $folder.debootstrap.log"
  rm -f "$folder.debootstrap.log"
fi

unmount() {
  local place
  for place in dev/pts dev/shm dev sys proc; do
    if mountpoint -q "$folder/$place"; then umount "$folder/$place" || umount -l "$folder/$place"; fi
  done
}
trap unmount EXIT
unmount # what an interrupted run may have left
mount -t proc proc "$folder/proc"
mount -t sysfs sys "$folder/sys"
mount --bind /dev "$folder/dev"
mount --bind /dev/pts "$folder/dev/pts"
mount -t tmpfs tmpfs "$folder/dev/shm"

cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
[[ ! -f /etc/hosts ]] || cp -L /etc/hosts "$folder/etc/hosts"
[[ ! -f /etc/ssl/certs/ca-certificates.crt ]] || cp -L /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
for file in $(grep -ls -i 'proxy' /etc/apt/apt.conf /etc/apt/apt.conf.d/* || true); do
  cp "$file" "$folder/etc/apt/apt.conf.d/"
done
rm -rf "$folder/root/headrace"
git clone --quiet --no-local . "$folder/root/headrace"

environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 CI=true)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_CERT PIP_INDEX_URL PIP_TRUSTED_HOST \
  PIP_DEFAULT_TIMEOUT SSL_CERT_FILE REQUESTS_CA_BUNDLE; do
  [[ -z ${!name:-} ]] || environment+=("$name=${!name}")
done

mkdir -p "$(dirname "$record")" build/logs
started=$SECONDS
set +e
chroot "$folder" env -i "${environment[@]}" bash -c "$work" </dev/null 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
set -e
{
  echo "$what"
  echo
  echo "commit    $(git rev-parse HEAD)"
  echo "date      $(date -u +%Y-%m-%d)"
  echo "system    Debian $(cat "$folder/etc/debian_version"), kernel $(uname -r), $(nproc) processors"
  echo "compiler  $(chroot "$folder" g++ --version 2>/dev/null | head -1)"
  echo "cmake     $(chroot "$folder" cmake --version 2>/dev/null | head -1)"
  echo "python    $(chroot "$folder" python3 --version 2>/dev/null)"
  echo "status    $status after $((SECONDS - started)) s"
  echo
  cat "$log"
} >"$record"
echo "try_debian13: status $status, recorded in $record"
exit "$status"
