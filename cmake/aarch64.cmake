# SPDX-License-Identifier: Apache-2.0
# Toolchain for a cross-compile to 64-bit Arm (g++-aarch64-linux-gnu). HEADRACE_AARCH64_SYSROOT names a
# folder with unpacked libdeflate-dev and liburing-dev of that architecture; without liburing configure with HEADRACE_URING=OFF.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(HEADRACE_AARCH64_SYSROOT "$ENV{HEADRACE_AARCH64_SYSROOT}" CACHE PATH "Folder with files of the target")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HEADRACE_AARCH64_SYSROOT)
if(HEADRACE_AARCH64_SYSROOT)
  list(APPEND CMAKE_FIND_ROOT_PATH ${HEADRACE_AARCH64_SYSROOT})
  set(ENV{PKG_CONFIG_LIBDIR} ${HEADRACE_AARCH64_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)
  set(ENV{PKG_CONFIG_SYSROOT_DIR} ${HEADRACE_AARCH64_SYSROOT})
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
# fmt and other header-only packages are the same for every architecture.
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
