#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh static|shared SOURCE BUILD CMAKE COMPILER URING PROGRAM
# Builds headrace as a user does (no developer options), installs it into a temporary prefix that is then
# moved, and outside the tree builds and runs a program against it: with find_package and with pkg-config.
# Every installed header must compile alone, and libheadrace.so must export names of headrace only.
set -euo pipefail
kind=$1 source=$2 build=$3 cmake=$4 compiler=$5 uring=$6 program=$7
here=$(dirname "$(readlink -f "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "install.$kind: $*" >&2
  exit 1
}

shared=OFF
# What the release preset passes to the compiler, so that a compiler cache has the objects; a shared library needs others,
# which are made in the quickest way.
flags="-O3 -g1 -DNDEBUG" precompiled=OFF
if [[ $kind == shared ]]; then
  shared=ON flags="-O0 -DNDEBUG" precompiled=ON
fi
"$cmake" -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_CXX_FLAGS_RELEASE="$flags" -DHEADRACE_WERROR=ON -DHEADRACE_CLI="$program" -DHEADRACE_PCH=$precompiled \
  -DBUILD_SHARED_LIBS=$shared -DHEADRACE_DEV=OFF -DHEADRACE_PYTHON=OFF -DHEADRACE_URING="$uring" >"$work/log" 2>&1 &&
  "$cmake" --build "$build" -j 2 >>"$work/log" 2>&1 &&
  "$cmake" --install "$build" --prefix "$work/first" >>"$work/log" 2>&1 || {
  cat "$work/log"
  fail "the build or the installation failed"
}
# An installed tree may be moved: nothing in it may name the place where it was.
mv "$work/first" "$work/prefix"
prefix=$work/prefix
if grep -rIlE "$work/first|$source|$build" "$prefix"; then fail "the files above name folders of the build"; fi

# Each header alone, twice over, under strict warnings.
count=0
for header in "$prefix"/include/headrace/*.h; do
  name=headrace/$(basename "$header")
  printf '#include <%s>\n#include <%s>\nint main() {}\n' "$name" "$name" >"$work/alone.cc"
  "$compiler" -std=c++23 -fsyntax-only -Wall -Wextra -Wpedantic -Werror -I "$prefix/include" "$work/alone.cc" ||
    fail "$name does not compile alone"
  count=$((count + 1))
done
expected=$(($(find "$source/include/headrace" -name '*.h' | wc -l) + 1)) # and version.h, which CMake writes
((count == expected)) || fail "$count headers were installed, $expected expected"

# The program, and what shells and man read of it.
if [[ $program == ON ]]; then
  "$prefix/bin/headrace" report >/dev/null || [[ $? == 1 ]] || fail "the installed program does not run"
  bash -n "$prefix/share/bash-completion/completions/headrace" || fail "the completion script for bash is none"
  head -1 "$prefix/share/zsh/site-functions/_headrace" | grep -qx '#compdef headrace' || fail "there is no completion for zsh"
  if command -v help2man >/dev/null; then
    for page in headrace headrace-{report,inspect,verify,convert,bench,bench-io,bench-engines,bench-compare,tune,completion}; do
      grep -q "^\.SH NAME" "$prefix/share/man/man1/$page.1" || fail "there is no page $page(1)"
    done
  fi
fi

cp -r "$here/consumer" "$work/consumer"
version=$(sed -n 's/^project(headrace VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
run() {
  local answer
  answer=$("$1" "$work/file") || fail "the program built with $2 failed: $answer"
  [[ $answer == "headrace $version: 1048579 bytes came back"* ]] || fail "the program built with $2 said: $answer"
  echo "$2: $answer"
}

"$cmake" -S "$work/consumer" -B "$work/with-cmake" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_PREFIX_PATH="$prefix" -DWANTED_VERSION="$version" >"$work/log" 2>&1 &&
  "$cmake" --build "$work/with-cmake" >>"$work/log" 2>&1 || {
  cat "$work/log"
  fail "find_package(headrace) did not lead to a program"
}
run "$work/with-cmake/consumer" find_package

pc=$(dirname "$(find "$prefix" -name headrace.pc)")
export PKG_CONFIG_PATH=$pc${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
[[ $(pkg-config --modversion headrace) == "$version" ]] || fail "pkg-config gives version $(pkg-config --modversion headrace)"
# shellcheck disable=SC2046  # flags are words
"$compiler" -std=c++23 $(pkg-config --cflags headrace) "$work/consumer/main.cc" -o "$work/with-pkg-config" \
  $(pkg-config --libs headrace) "-Wl,-rpath,$(dirname "$pc")" || fail "pkg-config did not lead to a program"
run "$work/with-pkg-config" pkg-config

if [[ $kind == shared ]]; then
  library=$(find "$prefix" -name 'libheadrace.so' | head -1)
  ldd "$library" | grep -E 'liburing|libfmt|libaio|libcu' && fail "libheadrace.so depends on the libraries above"
  # Names of other namespaces or of plain C; weak instances of the standard library's templates are shared by nature.
  strangers=$(nm -DC --defined-only "$library" | awk '$2 != "W" && $2 != "V" && $2 != "u"' |
    sed -E 's/^[0-9a-f]+ . //' | grep -vE '^(vtable for |typeinfo (name )?for |guard variable for )?headrace::' || true)
  [[ -z $strangers ]] || fail "libheadrace.so exports names that are not headrace's: $strangers"
fi
echo "install.$kind: $count headers compile alone, both programs ran"
