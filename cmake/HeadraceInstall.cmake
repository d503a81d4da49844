# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts down: library, public headers, CMake package, pkg-config file.
include(CMakePackageConfigHelpers)

install(TARGETS headrace EXPORT headrace
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT devel
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT devel
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/headrace ${PROJECT_BINARY_DIR}/generated/headrace
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT devel FILES_MATCHING PATTERN "*.h")

# A static libheadrace.a leaves libdeflate and liburing to the user's link; libheadrace.so carries them inside.
set(HEADRACE_NEEDS_LIBDEFLATE FALSE)
set(HEADRACE_NEEDS_LIBURING FALSE)
set(HEADRACE_PC_REQUIRES "")
if(NOT BUILD_SHARED_LIBS)
  set(HEADRACE_NEEDS_LIBDEFLATE TRUE)
  set(HEADRACE_PC_REQUIRES libdeflate)
  target_link_libraries(headrace PRIVATE $<INSTALL_INTERFACE:headrace::libdeflate>)
  if(HEADRACE_URING)
    set(HEADRACE_NEEDS_LIBURING TRUE)
    string(APPEND HEADRACE_PC_REQUIRES " liburing")
    target_link_libraries(headrace PRIVATE $<INSTALL_INTERFACE:headrace::liburing>)
  endif()
endif()
if(BUILD_SHARED_LIBS)
  set(HEADRACE_PC_CFLAGS "")
  set(HEADRACE_PC_LIBS_PRIVATE "")
  set(HEADRACE_PC_LIBS "-lheadrace")
else()
  set(HEADRACE_PC_CFLAGS " -DHEADRACE_STATIC=1")
  set(HEADRACE_PC_LIBS "-lheadrace -pthread -ldl")
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headrace)
install(EXPORT headrace NAMESPACE headrace:: FILE headraceTargets.cmake
  DESTINATION ${package_dir} COMPONENT devel)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/headraceConfig.cmake.in
  ${PROJECT_BINARY_DIR}/headraceConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/headraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/headraceConfig.cmake ${PROJECT_BINARY_DIR}/headraceConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT devel)

# Paths relative to the file keep the installed tree movable.
file(RELATIVE_PATH HEADRACE_PC_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${PROJECT_SOURCE_DIR}/cmake/headrace.pc.in ${PROJECT_BINARY_DIR}/headrace.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/headrace.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT devel)
