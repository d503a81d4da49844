// SPDX-License-Identifier: Apache-2.0
// The functions of fmt, compiled here alone: in its header-only form every source that formats compiles them again, which
// takes three times as long as all the rest of an ordinary one. Named below are its templates that other sources expect
// to find. They lie in a namespace of our own (cmake/HeadraceTargets.cmake): a program may bring fmt's own library.
// Any thread.
// Owns nothing.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template FMT_API auto dragonbox::to_decimal(float number) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double number) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);
#if FMT_VERSION >= 100000 && FMT_VERSION < 110100
template FMT_API void vformat_to<char>(buffer<char>&, string_view, vformat_args<char>::type, locale_ref);
#endif

}  // namespace detail
FMT_END_NAMESPACE
