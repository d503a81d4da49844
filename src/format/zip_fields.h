// SPDX-License-Identifier: Apache-2.0
// Numbers of the zip format that its writer and its reader share (PKWARE's APPNOTE 6.3.10), and of torch's dialect.
// Any thread: constants.
// Owns nothing.
#pragma once

#include <cstdint>

namespace headrace::format {

inline constexpr uint32_t kZipLocalSignature = 0x04034B50;
inline constexpr uint32_t kZipDescriptorSignature = 0x08074B50;
inline constexpr uint32_t kZipDirectorySignature = 0x02014B50;
inline constexpr uint32_t kZip64EndSignature = 0x06064B50;
inline constexpr uint32_t kZip64LocatorSignature = 0x07064B50;
inline constexpr uint32_t kZipEndSignature = 0x06054B50;

inline constexpr uint64_t kZipLocalHeaderBytes = 30;
inline constexpr uint64_t kZipDescriptorBytes = 16;
inline constexpr uint64_t kZip64DescriptorBytes = 24;
inline constexpr uint64_t kZipDirectoryEntryBytes = 46;
inline constexpr uint64_t kZip64EndBytes = 56;
inline constexpr uint64_t kZip64LocatorBytes = 20;
inline constexpr uint64_t kZipEndBytes = 22;

inline constexpr uint64_t kZip32Max = UINT32_MAX;  // a 32-bit field that says: see the ZIP64 extra field
inline constexpr uint64_t kZip16Max = UINT16_MAX;  // and a 16-bit one: see the ZIP64 end record
inline constexpr uint16_t kZip64ExtraId = 0x0001;

// Encrypted in one of three ways, or a patch of another file: not the bytes that the record stands for.
inline constexpr uint16_t kZipFlagsUnreadable = 1U << 0 | 1U << 5 | 1U << 6 | 1U << 13;
inline constexpr uint16_t kZipFlagDescriptor = 1U << 3;
inline constexpr uint16_t kZipFlagUtf8 = 1U << 11;

inline constexpr uint32_t kZipAttributeFolder = 1U << 4;  // of the external attributes, as MS-DOS has them

// torch pads with an extra field: "FB", its length, and that many "Z".
inline constexpr uint64_t kPaddingHeaderBytes = 4;
inline constexpr uint64_t kSerializationIdDigits = 40;

}  // namespace headrace::format
