// SPDX-License-Identifier: Apache-2.0
// HEADRACE_EXPORT marks what libheadrace.so offers; everything else is hidden.
// Users of the static library get HEADRACE_STATIC from the CMake package or from pkg-config.
// A macro only: any thread, nothing owned.
#pragma once

#if defined(HEADRACE_STATIC)
#define HEADRACE_EXPORT
#else
#define HEADRACE_EXPORT __attribute__((visibility("default")))
#endif
