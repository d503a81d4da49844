// SPDX-License-Identifier: Apache-2.0
// Where memory lives.
// Plain values: any thread, owning nothing.
// Only host memory can be moved by this version; requests that name another device are refused by name.
#pragma once

#include <cstdint>

namespace headrace {

enum class DeviceKind : uint8_t {
  host,
  cuda,
  other,  // somewhere that only SaveOptions::device_copy can reach, such as another file
};

struct Device {
  DeviceKind kind = DeviceKind::host;
  int32_t index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace headrace
