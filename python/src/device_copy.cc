// SPDX-License-Identifier: Apache-2.0
// See the header.
// Threads as the header says.
// Owners as the header says.
#include "device_copy.h"

#include <utility>

#include "interpreter.h"

namespace headrace::python {

ConstRegion region_at(uint64_t address, uint64_t bytes) noexcept {
  const Device device = {.kind = address >= kDeviceAddress ? DeviceKind::cuda : DeviceKind::host, .index = 0};
  return {reinterpret_cast<const std::byte*>(address), bytes, device};
}

PythonCopy::PythonCopy(std::optional<DeviceCopyArgument> argument) : argument_(std::move(argument)) {}

DeviceCopy PythonCopy::device_copy() {
  if (!argument_) return {};
  const auto& [address, bytes, callable] = *argument_;
  return {.copy = [this](const ConstRegion& source, std::span<std::byte> target) { return copy(source, target); },
          .staging = {reinterpret_cast<std::byte*>(address), bytes}};
}

void PythonCopy::raise_again() const {
  if (raised_) std::rethrow_exception(raised_);
}

Status PythonCopy::copy(const ConstRegion& source, std::span<std::byte> target) {
  const PythonEntry entry;
  if (entry) {
    const auto& [address, bytes, callable] = *argument_;
    try {
      callable(reinterpret_cast<uintptr_t>(source.data), target.size(),
               reinterpret_cast<uintptr_t>(target.data()) - address);
      return {};
    } catch (const nb::python_error&) {
      raised_ = std::current_exception();
    }
  }
  return std::unexpected(Error{.code = ErrorCode::interrupted,
                               .operation = "save",
                               .detail = "bytes of a device could not be copied to the host"});
}

}  // namespace headrace::python
