#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel with every Python from 3.10 on that this machine has, and runs the Python tests with each
# (without torch: its builds for other Pythons are large). Pythons are looked for on PATH and under ~/.pyenv.
# Where the stable ABI applies, one wheel made by the oldest such Python is also tried with the newest.
# Usage: tools/try_pythons.sh, as ./dev test --full does. Environments live under build/pythons.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

declare -A found=()
for candidate in python3 python3.1{0,1,2,3,4,5} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
  path=$(command -v "$candidate") || continue
  version=$("$path" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 10))' 2>/dev/null) || continue
  found[$version]=${found[$version]:-$path}
done

failed=() tried=() stable_wheel=""
mapfile -t versions < <(printf '%s\n' "${!found[@]}" | sort -V)
for version in "${versions[@]}"; do
  folder=build/pythons/$version
  echo "== Python $version (${found[$version]})"
  if {
    rm -rf "$folder" &&
      "${found[$version]}" -m venv "$folder" &&
      "$folder/bin/pip" install --quiet -r tools/requirements/build.txt -r tools/requirements/test.txt 'cmake>=3.26' ninja &&
      "$folder/bin/pip" wheel --quiet --no-build-isolation --no-deps --wheel-dir "$folder/wheel" . &&
      "$folder/bin/pip" install --quiet --no-deps --no-index "$folder"/wheel/headrace-*.whl &&
      "$folder/bin/python" -m pytest -q -rfE -p no:cacheprovider -m 'not slow' python/tests
  }; then
    tried+=("$version")
  else
    failed+=("$version")
  fi
  for wheel in "$folder"/wheel/headrace-*abi3*.whl; do
    [[ -n $stable_wheel || ! -f $wheel ]] || stable_wheel=$wheel
  done
done

newest=${versions[-1]}
if [[ -n $stable_wheel && $stable_wheel != build/pythons/$newest/* ]]; then
  echo "== $(basename "$stable_wheel") with Python $newest"
  if "build/pythons/$newest/bin/pip" install --quiet --force-reinstall --no-deps --no-index "$stable_wheel" &&
    "build/pythons/$newest/bin/python" -m pytest -q -rfE -p no:cacheprovider -m 'not slow' python/tests; then
    tried+=("stable ABI on $newest")
  else
    failed+=("stable ABI on $newest")
  fi
fi
printf 'pythons: passed: %s\n' "$(IFS=,; echo "${tried[*]}")"
((${#failed[@]} == 0)) || {
  printf 'pythons: FAILED: %s\n' "$(IFS=,; echo "${failed[*]}")"
  exit 1
}
