// SPDX-License-Identifier: Apache-2.0
// Saving from devices through Python, which knows how to copy from them: see headrace/_device.py.
// Made and dropped by a thread with the GIL; the save calls it in that thread, without the GIL.
// Holds the callable. The staging memory is the caller's.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <tuple>

#include <nanobind/nanobind.h>

#include <headrace/checkpoint.h>

namespace headrace::python {

namespace nb = nanobind;

// Addresses from here on are a device's, in the numbering of headrace/_device.py; no memory of a process has them.
inline constexpr uint64_t kDeviceAddress = uint64_t{1} << 63;

// Bytes at an address of this process or, from kDeviceAddress on, of a device.
ConstRegion region_at(uint64_t address, uint64_t bytes) noexcept;

// Staging memory as address and bytes, and copy(address on the device, bytes, offset in the staging memory).
using DeviceCopyArgument = std::tuple<uintptr_t, uint64_t, nb::callable>;

class PythonCopy {
 public:
  explicit PythonCopy(std::optional<DeviceCopyArgument> argument);
  PythonCopy(const PythonCopy&) = delete;
  PythonCopy& operator=(const PythonCopy&) = delete;

  // For SaveOptions; valid as long as this lives. Empty without an argument.
  [[nodiscard]] DeviceCopy device_copy();
  // What the callable raised, if it did.
  void raise_again() const;

 private:
  Status copy(const ConstRegion& source, std::span<std::byte> target);

  std::optional<DeviceCopyArgument> argument_;
  std::exception_ptr raised_;
};

}  // namespace headrace::python
