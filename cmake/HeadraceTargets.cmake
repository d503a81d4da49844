# SPDX-License-Identifier: Apache-2.0
# What every target of this project shares. Interface targets only; nothing here is global state.
#   headrace_options    language level, hidden visibility; every target links it privately
#   headrace_sanitize   -fsanitize= flags; empty in an ordinary build
#   headrace_warnings   warnings, errors under HEADRACE_WERROR

add_library(headrace_options INTERFACE)
target_compile_features(headrace_options INTERFACE cxx_std_23)

add_library(headrace_sanitize INTERFACE)
if(HEADRACE_SANITIZE)
  set(flags -fsanitize=${HEADRACE_SANITIZE} -fno-omit-frame-pointer)
  if(HEADRACE_SANITIZE MATCHES "undefined")
    list(APPEND flags -fno-sanitize-recover=undefined)
  endif()
  target_compile_options(headrace_sanitize INTERFACE ${flags})
  target_compile_definitions(headrace_sanitize INTERFACE HEADRACE_SANITIZED=1)  # each compiler has a macro of its own
  target_link_options(headrace_sanitize INTERFACE ${flags})
endif()
if(HEADRACE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "HEADRACE_FUZZ needs clang; configure with --preset asan.")
  endif()
  target_compile_options(headrace_sanitize INTERFACE -fsanitize=fuzzer-no-link)
endif()
target_link_libraries(headrace_options INTERFACE headrace_sanitize)

add_library(headrace_warnings INTERFACE)
target_compile_options(headrace_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
  -Wsign-conversion -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual
  -Wimplicit-fallthrough)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Designated initialisers with the remaining fields defaulted are the house style.
  target_compile_options(headrace_warnings INTERFACE -Wno-missing-designated-field-initializers
    -Wno-missing-field-initializers -Wthread-safety)
else()
  target_compile_options(headrace_warnings INTERFACE -Wno-missing-field-initializers)
endif()
if(HEADRACE_WERROR)
  target_compile_options(headrace_warnings INTERFACE -Werror)
endif()

# fmt, from its headers alone: it appears in no public header and in no installed file. Its functions are compiled once
# (src/base/fmt_definitions.cc) under a name of our own, where its version is one that this was tried with.
#   headrace_fmt           for every target that formats, beside libheadrace.a
#   HEADRACE_FMT_COMPILED  then libheadrace.a has the functions; another binary needs that source in its own list
add_library(headrace_fmt INTERFACE)
find_path(HEADRACE_FMT_INCLUDE fmt/format.h)
mark_as_advanced(HEADRACE_FMT_INCLUDE)
if(NOT HEADRACE_FMT_INCLUDE)
  message(FATAL_ERROR "fmt/format.h was not found. On Debian or Ubuntu: apt-get install libfmt-dev")
endif()
target_include_directories(headrace_fmt SYSTEM INTERFACE ${HEADRACE_FMT_INCLUDE})
set(HEADRACE_FMT_VERSION 0)
foreach(header IN ITEMS core base)
  if(EXISTS ${HEADRACE_FMT_INCLUDE}/fmt/${header}.h)
    file(STRINGS ${HEADRACE_FMT_INCLUDE}/fmt/${header}.h line REGEX "^#define FMT_VERSION [0-9]+")
    if(line MATCHES "([0-9]+)$")
      set(HEADRACE_FMT_VERSION ${CMAKE_MATCH_1})
    endif()
  endif()
endforeach()
if(HEADRACE_FMT_VERSION GREATER_EQUAL 90000 AND HEADRACE_FMT_VERSION LESS 130000)
  set(HEADRACE_FMT_COMPILED TRUE)
  target_compile_definitions(headrace_fmt INTERFACE
    "FMT_BEGIN_NAMESPACE=namespace fmt { inline namespace headrace {" "FMT_END_NAMESPACE=}}")
else()
  set(HEADRACE_FMT_COMPILED FALSE)
  message(STATUS "fmt ${HEADRACE_FMT_VERSION} is not known here: header-only, which takes longer to compile")
  target_compile_definitions(headrace_fmt INTERFACE FMT_HEADER_ONLY=1)
endif()

# Hidden visibility and position-independent code, for a library or a program of this project.
function(headrace_set_properties target)
  set_target_properties(${target} PROPERTIES
    CXX_STANDARD 23 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF CXX_SCAN_FOR_MODULES OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
endfunction()

# An imported target for the static archive of a distribution's package, so that one built library or
# wheel runs on distributions whose sonames differ.
#   headrace_static_dependency(<target> PKG <pkg-config module> ARCHIVE <libx.a> APT <package>)
function(headrace_static_dependency target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PKG;ARCHIVE;APT" "")
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(${target}_pc QUIET ${arg_PKG})
  if(NOT ${target}_pc_FOUND)
    message(FATAL_ERROR "${arg_PKG} was not found by pkg-config. On Debian or Ubuntu: apt-get install ${arg_APT}")
  endif()
  find_library(${target}_archive ${arg_ARCHIVE}
    HINTS ${${target}_pc_STATIC_LIBRARY_DIRS} ${${target}_pc_LIBDIR})
  if(NOT ${target}_archive)
    message(FATAL_ERROR "${arg_ARCHIVE} was not found. On Debian or Ubuntu: apt-get install ${arg_APT}")
  endif()
  mark_as_advanced(${target}_archive)
  message(STATUS "${arg_PKG} ${${target}_pc_VERSION}: ${${target}_archive}")
  add_library(${target} STATIC IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES
    IMPORTED_LOCATION ${${target}_archive}
    INTERFACE_INCLUDE_DIRECTORIES "${${target}_pc_INCLUDE_DIRS}")
endfunction()

# Headers that most sources take, for targets that are compiled once only: a compiler cache does not keep such objects.
set(HEADRACE_PRECOMPILED <algorithm> <chrono> <filesystem> <functional> <map> <memory> <mutex> <ranges> <string> <thread>
  <vector> <fmt/format.h> <fmt/ranges.h> <headrace/checkpoint.h> <headrace/headrace.h>)

# A GoogleTest program.
#   headrace_add_gtest(<name> SOURCES <files> LABEL <label> [LIBRARIES <targets>] [WHOLE] [TIMEOUT <s>]
#                      [COST <n>] [ARGUMENTS <args>])
# Without WHOLE, each test is its own ctest test; with it, the program runs once (for suites whose
# set-up is dear, such as loop devices). A label keeps suites apart: unit conformance fault stress
# install tidy fuzz.
function(headrace_add_gtest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WHOLE" "LABEL;TIMEOUT" "SOURCES;LIBRARIES;ARGUMENTS")
  find_package(GTest REQUIRED)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name} ${arg_SOURCES})
  headrace_set_properties(${name})
  # What is tested is the library: many tests that do little each need not be optimised, which takes half their time.
  target_compile_options(${name} PRIVATE $<IF:$<BOOL:${arg_WHOLE}>,-O1,-O0>)
  list(LENGTH arg_SOURCES count)
  if(count GREATER 8)
    target_precompile_headers(${name} PRIVATE <gtest/gtest.h> ${HEADRACE_PRECOMPILED})
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE
    headrace::headrace headrace_options headrace_warnings headrace_fmt GTest::gtest_main ${arg_LIBRARIES})
  if(arg_WHOLE)
    add_test(NAME ${name} COMMAND ${name} ${arg_ARGUMENTS})
    set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT})
  else()
    include(GoogleTest)
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST EXTRA_ARGS ${arg_ARGUMENTS}
      PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT})
  endif()
endfunction()
