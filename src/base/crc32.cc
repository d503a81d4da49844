// SPDX-License-Identifier: Apache-2.0
// See the header. Arithmetic of polynomials over GF(2) modulo the CRC's; ISA-L by dlopen, tried before it is trusted.
// Any thread.
// The handle of ISA-L stays open for the life of the process: sums may be in use on any thread.
#include "base/crc32.h"

#include <dlfcn.h>
#include <libdeflate.h>

#include <array>

namespace headrace::base {
namespace {

using Function = uint32_t (*)(uint32_t before, const unsigned char* data, uint64_t bytes);

uint32_t by_libdeflate(uint32_t before, const unsigned char* data, uint64_t bytes) {
  return libdeflate_crc32(before, data, bytes);
}

// The right answer for a text of every length class that such code treats apart (tails, folding, many blocks).
bool agrees(Function function) {
  std::array<unsigned char, 4099> text;
  uint32_t seed = 1;
  for (unsigned char& byte : text) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<unsigned char>(seed >> 24);
  }
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{255}, size_t{1024}, text.size() - 1}) {
    if (function(7, text.data() + 1, bytes) != by_libdeflate(7, text.data() + 1, bytes)) return false;
  }
  return true;
}

struct Implementation {
  Function function = by_libdeflate;
  std::string_view name = "libdeflate";

  Implementation() noexcept {
    void* library = dlopen("libisal.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto found = reinterpret_cast<Function>(dlsym(library, "crc32_gzip_refl"));
    if (found == nullptr || !agrees(found)) {
      (void)dlclose(library);
      return;
    }
    function = found;
    name = "isa-l";
  }
};

const Implementation& implementation() noexcept {
  static const Implementation found;
  return found;
}

constexpr uint32_t kPolynomial = 0xEDB88320;  // bit 31 is the coefficient of x^0

// a * b modulo the polynomial.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;  // times x
  }
  return product;
}

// x^(8 * 2^k): what 2^k bytes behind a text multiply its sum by.
constexpr std::array<uint32_t, 64> powers() {
  std::array<uint32_t, 64> all = {};
  uint32_t power = uint32_t{1} << 23;  // x^8
  for (uint32_t& one : all) {
    one = power;
    power = multiply(power, power);
  }
  return all;
}
constexpr std::array<uint32_t, 64> kPowers = powers();

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) noexcept {
  return implementation().function(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

uint32_t crc32_contribution(uint32_t sum, uint64_t bytes_behind) noexcept {
  for (size_t k = 0; bytes_behind != 0; ++k, bytes_behind >>= 1) {
    if ((bytes_behind & 1) != 0) sum = multiply(kPowers[k], sum);
  }
  return sum;
}

std::string_view crc32_implementation() noexcept { return implementation().name; }

}  // namespace headrace::base
