// SPDX-License-Identifier: Apache-2.0
// See dlpack.h. The structures below follow the published ABI.
// Threads as dlpack.h says.
// Owners as dlpack.h says.
#include "dlpack.h"

#include <string>

#include <nanobind/stl/string.h>

#include "errors.h"

namespace headrace::python {

namespace {

constexpr int32_t kDeviceHost = 1;        // kDLCPU
constexpr int32_t kDeviceHostPinned = 3;  // kDLCUDAHost: host memory that CUDA knows
constexpr uint8_t kTypeUnsigned = 1;      // kDLUInt
constexpr uint64_t kFlagReadOnly = 1;     // DLPACK_FLAG_BITMASK_READ_ONLY

struct DlDevice {
  int32_t kind;
  int32_t index;
};

struct DlType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DlTensor {
  void* data;
  DlDevice device;
  int32_t dimensions;
  DlType type;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major
  uint64_t byte_offset;
};

struct LegacyManaged {  // capsule "dltensor"
  DlTensor tensor;
  void* context;
  void (*deleter)(LegacyManaged*);
};

struct VersionedManaged {  // capsule "dltensor_versioned"
  uint32_t major;
  uint32_t minor;
  void* context;
  void (*deleter)(VersionedManaged*);
  uint64_t flags;
  DlTensor tensor;
};

uint64_t element_count(const DlTensor& tensor) noexcept {
  uint64_t count = 1;
  for (int32_t i = 0; i < tensor.dimensions; ++i)
    count *= static_cast<uint64_t>(tensor.shape[i]);
  return count;
}

bool is_row_major(const DlTensor& tensor) noexcept {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.dimensions - 1; i >= 0; --i) {
    if (tensor.shape[i] == 1) continue;
    if (tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

nb::object request_capsule(nb::handle object) {
  try {
    return object.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // an exporter from before DLPack 1.0 does not know the argument
  }
  return object.attr("__dlpack__")();
}

void append_tensor(const DlTensor& tensor, Access access, nb::object capsule, Hold& hold, std::vector<Span>& spans) {
  const uint64_t count = element_count(tensor);
  const uint64_t bytes = (count * tensor.type.bits * tensor.type.lanes + 7) / 8;
  if (bytes == 0) return;
  if (!is_row_major(tensor)) {
    refuse(PyExc_ValueError, "a DLPack tensor that is not row-major cannot be used %s: make a contiguous one",
           access_name(access));
  }
  spans.push_back({static_cast<std::byte*>(tensor.data) + tensor.byte_offset, bytes});
  hold.keep(std::move(capsule));  // not renamed to "used": the exporter's own destructor gives the memory back
}

// Owns the memory of one exported tensor.
template <class Managed>
struct Exported {
  Managed managed = {};
  Buffer buffer;
  int64_t shape = 0;

  static void destroy(Managed* managed) { delete static_cast<Exported*>(managed->context); }
};

template <class Managed>
Managed* make_managed(const Buffer& buffer) {
  auto* exported = new Exported<Managed>;
  exported->buffer = buffer;
  exported->shape = static_cast<int64_t>(buffer.bytes());
  Managed& managed = exported->managed;
  managed.context = exported;
  managed.deleter = Exported<Managed>::destroy;
  managed.tensor = {.data = buffer.data(),
                    .device = {kDeviceHost, 0},
                    .dimensions = 1,
                    .type = {kTypeUnsigned, 8, 1},
                    .shape = &exported->shape,
                    .strides = nullptr,
                    .byte_offset = 0};
  return &managed;
}

// A consumer renames the capsule and takes the tensor over; one that keeps its name was never consumed.
template <class Managed>
void destroy_unconsumed(PyObject* capsule, const char* name) noexcept {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

constexpr const char* kLegacyName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

}  // namespace

void add_dlpack(nb::handle object, Access access, Hold& hold, std::vector<Span>& spans) {
  const nb::object device = object.attr("__dlpack_device__")();
  const auto kind = nb::cast<int32_t>(nb::int_(device[0]));
  if (kind != kDeviceHost && kind != kDeviceHostPinned) {
    refuse(PyExc_ValueError,
           "a DLPack tensor on device type %d cannot be moved: GPU memory is not supported by this version; copy it to "
           "the host",
           static_cast<int>(kind));
  }
  nb::object capsule = request_capsule(object);
  if (PyCapsule_IsValid(capsule.ptr(), kVersionedName) != 0) {
    const auto* managed = static_cast<const VersionedManaged*>(PyCapsule_GetPointer(capsule.ptr(), kVersionedName));
    if (managed->major != 1) refuse(PyExc_BufferError, "DLPack version %u is not understood", managed->major);
    if (access == Access::target && (managed->flags & kFlagReadOnly) != 0) {
      refuse(PyExc_ValueError, "a read-only DLPack tensor cannot be a read target");
    }
    return append_tensor(managed->tensor, access, std::move(capsule), hold, spans);
  }
  if (PyCapsule_IsValid(capsule.ptr(), kLegacyName) == 0) {
    refuse(PyExc_TypeError, "__dlpack__ returned something that is no DLPack tensor");
  }
  if (access == Access::target && nb::cast<std::string>(object.type().attr("__module__")).starts_with("jax")) {
    refuse(PyExc_ValueError, "a JAX array is immutable and cannot be a read target");
  }
  const auto* managed = static_cast<const LegacyManaged*>(PyCapsule_GetPointer(capsule.ptr(), kLegacyName));
  append_tensor(managed->tensor, access, std::move(capsule), hold, spans);
}

nb::object make_dlpack(const Buffer& buffer, DlpackVersion version) {
  PyObject* capsule = nullptr;
  if (version == DlpackVersion::one) {
    VersionedManaged* managed = make_managed<VersionedManaged>(buffer);
    managed->major = 1;
    managed->minor = 0;
    capsule = PyCapsule_New(managed, kVersionedName,
                            [](PyObject* unused) { destroy_unconsumed<VersionedManaged>(unused, kVersionedName); });
    if (capsule == nullptr) managed->deleter(managed);
  } else {
    LegacyManaged* managed = make_managed<LegacyManaged>(buffer);
    capsule = PyCapsule_New(managed, kLegacyName,
                            [](PyObject* unused) { destroy_unconsumed<LegacyManaged>(unused, kLegacyName); });
    if (capsule == nullptr) managed->deleter(managed);
  }
  if (capsule == nullptr) throw nb::python_error();
  return nb::steal(capsule);
}

}  // namespace headrace::python
