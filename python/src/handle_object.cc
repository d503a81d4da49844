// SPDX-License-Identifier: Apache-2.0
// See handle_object.h: the life of a handle. Requests are in requests.cc.
// Threads as handle_object.h says.
// Owners as handle_object.h says.
#include "handle_object.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <headrace/profile.h>

#include "callback.h"
#include "errors.h"
#include "file_object.h"
#include "options.h"
#include "requests.h"
#include "route.h"

namespace headrace::python {

namespace {

constexpr Nanoseconds kPatienceOnExit = std::chrono::seconds(30);  // as ~Handle

// Handles of this process that were not destroyed. Guarded by the GIL.
std::vector<HandleObject*>& living_handles() {
  static auto* handles = new std::vector<HandleObject*>;  // never destroyed: objects may die after static destructors
  return *handles;
}

[[noreturn]] void refuse_closed(const char* why) {
  refuse(import_attribute("headrace._errors", "ClosedError").ptr(), why);
}

// True when the library has nothing unfinished any more.
bool is_over(const Status& status) { return status.has_value() || status.error().code != ErrorCode::timed_out; }

}  // namespace

HandleObject::HandleObject(Handle handle) : handle_(std::move(handle)) { living_handles().push_back(this); }

HandleObject::~HandleObject() {
  std::erase(living_handles(), this);
  if (!belongs_to_parent() && !interpreter_is_leaving() && !given_up_) {
    // A destructor cannot raise KeyboardInterrupt: asked for again, it comes with the next bytecode.
    if (!close_unheard(kPatienceOnExit)) PyErr_SetInterrupt();
  }
  if (belongs_to_parent() || given_up_) {
    // Not destroyed: in a forked child its threads do not exist, and after a stuck device the memory must stay.
    static_cast<void>(new Handle(std::move(handle_)));
    return;
  }
  without_gil([&] { const Handle last = std::move(handle_); });
}

const Handle& HandleObject::handle_of_this_process() const {
  if (belongs_to_parent()) {
    refuse_closed("this handle belongs to the process that forked this one: make a new headrace.Handle here");
  }
  return handle_;
}

Handle& HandleObject::open_handle() {
  static_cast<void>(handle_of_this_process());
  if (interpreter_is_leaving()) refuse_closed("the interpreter is exiting");
  if (!handle_.is_open()) refuse_closed("this handle is closed");
  return handle_;
}

void HandleObject::close(std::optional<double> timeout_s) {
  const Deadline deadline(timeout_s);
  if (belongs_to_parent() || interpreter_is_leaving()) return;
  Status status;
  if (!wait_in_slices(deadline, [&](Nanoseconds slice) { return is_over(status = handle_.close(slice)); })) {
    refuse(PyExc_TimeoutError, "requests of this handle are not done yet: it takes no more, and their memory stays");
  }
  release_finished(*holds_);
  if (!status) raise(status.error(), {});
}

void HandleObject::leave(nb::handle exception) {
  if (exception.is_none()) return close(std::nullopt);
  abort_reads(*holds_);
  try {
    close(std::nullopt);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;  // Ctrl-C during the wait comes before the exception in flight
    import_attribute("headrace._errors", "add_note")(exception, error.value());
  }
}

// Never raises: for destructors and the interpreter's exit. False when a signal handler that raised (Ctrl-C) ended the wait.
bool HandleObject::close_unheard(Nanoseconds patience) noexcept {
  const nb::error_scope keep_the_error_in_flight;
  abort_reads(*holds_);
  Status status;
  try {
    const Deadline deadline(std::chrono::duration<double>(patience).count());
    given_up_ = !wait_in_slices(deadline, [&](Nanoseconds slice) { return is_over(status = handle_.close(slice)); });
    if (!given_up_) release_finished(*holds_);
    if (status) return true;
    log_record(LogLevel::error,
               decode_path("a handle went away with a failure that nobody collected: " + status.error().message()));
    return true;
  } catch (nb::python_error&) {
    given_up_ = true;
    return false;
  }
}

void close_all_handles() {
  const auto end = std::chrono::steady_clock::now() + kPatienceOnExit;
  // By index, and looked up again each time: closing runs Python code of callbacks, which may drop or make handles.
  std::vector<HandleObject*>& handles = living_handles();
  for (size_t i = 0; i < handles.size(); ++i) {
    HandleObject* handle = handles[i];
    if (handle->belongs_to_parent() || handle->given_up_) continue;
    const nb::object self = nb::find(handle);  // keeps it while the GIL is away
    const auto left = std::chrono::duration_cast<Nanoseconds>(end - std::chrono::steady_clock::now());
    handle->close_unheard(std::max(left, Nanoseconds{0}));
  }
}

namespace {

struct Range {
  uint64_t least = 1;
  uint64_t most = UINT64_MAX;
  uint64_t unit = 1;
};

std::string words_for(const Range& range) {
  const std::string least = std::to_string(range.least);
  if (range.most == UINT64_MAX) return least + " or more";
  return (range.unit == 1 ? "" : "multiples of " + std::to_string(range.unit) + " from ") + least + " to " +
         std::to_string(range.most);
}

// None becomes 0, which is the library's word for its default.
uint64_t number_or_default(const char* name, std::optional<int64_t> value, const Range& range) {
  if (!value) return 0;
  const auto number = static_cast<uint64_t>(*value);
  if (*value < 0 || number < range.least || number > range.most || number % range.unit != 0) {
    refuse(PyExc_ValueError, "%s is %lld; allowed: %s, or None for the default", name, static_cast<long long>(*value),
           words_for(range).c_str());
  }
  return number;
}

uint32_t small_or_default(const char* name, std::optional<int64_t> value, uint32_t most) {
  return static_cast<uint32_t>(number_or_default(name, value, {.most = most}));
}

ProfileUse parse_profile_use(const std::optional<std::string>& word) {
  if (!word || *word == "both") return ProfileUse::both;
  if (*word == "read") return ProfileUse::read;
  if (*word == "write") return ProfileUse::write;
  refuse(PyExc_ValueError, "profile_for is '%s'; allowed: 'read', 'write', 'both'", word->c_str());
}

// What a file that headrace tune wrote says, or the library's defaults.
HandleOptions options_of_profile(nb::handle profile, const std::optional<std::string>& profile_for) {
  if (profile.is_none()) {
    if (profile_for) refuse(PyExc_ValueError, "profile_for says which part of a profile to take, and profile is None");
    return {};
  }
  const std::string path = path_bytes(profile);
  const ProfileUse use = parse_profile_use(profile_for);
  Result<HandleOptions> options = without_gil([&] { return read_profile(path, use); });
  if (!options) raise(options.error(), profile);
  return *std::move(options);
}

void construct(HandleObject* self, const std::optional<std::string>& engine, std::optional<int64_t> workers,
               std::optional<int64_t> block_bytes, std::optional<int64_t> queue_depth,
               std::optional<int64_t> staging_bytes, std::optional<int64_t> requests_max, const std::string& when_full,
               const std::string& direct, const std::optional<std::string>& registered,
               const std::string& staging_pages, nb::handle profile, const std::optional<std::string>& profile_for) {
  if (interpreter_is_leaving()) refuse_closed("the interpreter is exiting");
  HandleOptions options = options_of_profile(profile, profile_for);
  if (engine) options.engine = parse_engine(*engine);
  if (workers) options.workers = small_or_default("workers", workers, kWorkersMax);
  if (block_bytes)
    options.block_bytes =
        number_or_default("block_bytes", block_bytes, {kBlockBytesMin, kBlockBytesMax, kBlockBytesMin});
  if (queue_depth) options.queue_depth = small_or_default("queue_depth", queue_depth, kQueueDepthMax);
  options.staging_bytes = number_or_default("staging_bytes", staging_bytes, {.least = kBlockBytesMin});
  if (requests_max) options.requests_max = small_or_default("requests_max", requests_max, UINT32_MAX);
  options.when_full = parse_when_full(when_full);
  options.direct = parse_ladder("direct", direct);
  if (registered) options.registered = parse_ladder("registered", *registered);
  options.staging_pages = parse_pages(staging_pages);
  options.interrupted = &signal_handler_raised;
  auto handle = without_gil([&] { return Handle::create(options); });
  if (!handle) raise(handle.error(), {});
  new (self) HandleObject(*std::move(handle));
}

std::string describe(const HandleObject& self) {
  if (self.belongs_to_parent()) return "<headrace.Handle of the process that forked this one>";
  if (!self.handle().is_open()) return "<headrace.Handle closed>";
  const HandleFacts facts = self.handle().facts();
  return "<headrace.Handle engine=" + std::string(engine_name(facts.engine)) +
         " workers=" + std::to_string(facts.workers) + " block_bytes=" + std::to_string(facts.block_bytes) +
         " queue_depth=" + std::to_string(facts.queue_depth) + ">";
}

constexpr const char* kHandleDoc = R"(Workers, staging memory and limits; accepts requests from any thread.

engine         "auto" (uring, else aio, else posix), the default, or one of "uring", "aio", "posix",
               "null" by name: UnavailableError says why that one cannot work here.
workers        I/O threads, 1 to 64. Default: one per processor, at most 4.
block_bytes    The largest piece of one system call, a multiple of 4096. Default: 4 MiB.
queue_depth    Blocks in flight per worker, 1 to 4096.
staging_bytes  The upper bound of staging memory of the whole handle. Default: at most 256 MiB.
requests_max   Unfinished requests, 65,536 by default. Beyond it a submission waits, or with
               when_full="raise" raises LimitError.
direct         Direct I/O: "auto", "never", or "required" (an error where it does not work).
registered     Buffers registered with the ring: the same words, "auto" by default.
staging_pages  "transparent" huge pages, "reserved" ones of the hugetlb pool, or "small".
profile        A file that ``headrace tune --output`` wrote: its engine, workers, block_bytes,
               queue_depth and registered take the place of the defaults. What is given here wins.
profile_for    Which of its settings: the best for "read", for "write", or for "both", the default.

Leaving a ``with`` block closes it. A handle that is dropped aborts its reads and finishes its
writes, as the interpreter's exit does. In a forked child it raises ClosedError: make a new one
there.)";

void bind_life(nb::class_<HandleObject>& handle) {
  handle
      .def("__init__", &construct, nb::kw_only(), nb::arg("engine") = nb::none(), nb::arg("workers") = nb::none(),
           nb::arg("block_bytes") = nb::none(), nb::arg("queue_depth") = nb::none(),
           nb::arg("staging_bytes") = nb::none(), nb::arg("requests_max") = nb::none(), nb::arg("when_full") = "wait",
           nb::arg("direct") = "auto", nb::arg("registered") = nb::none(), nb::arg("staging_pages") = "transparent",
           nb::arg("profile") = nb::none(), nb::arg("profile_for") = nb::none(),
           nb::sig("def __init__(self, *, engine: headrace._types.Engine | None = None, workers: int | None = None, "
                   "block_bytes: int | None = None, queue_depth: int | None = None, staging_bytes: int | None = None, "
                   "requests_max: int | None = None, when_full: typing.Literal['wait', 'raise'] = 'wait', "
                   "direct: headrace._types.Ladder = 'auto', registered: headrace._types.Ladder | None = None, "
                   "staging_pages: headrace._types.Pages = 'transparent', profile: headrace._types.Path | None = None, "
                   "profile_for: typing.Literal['read', 'write', 'both'] | None = None) -> None"))
      .def("close", &HandleObject::close, nb::arg("timeout") = nb::none(),
           nb::sig("def close(self, timeout: float | None = None) -> None"),
           R"(Takes no more requests, waits for the unfinished ones, frees everything. Safe to call twice.

Raises the first error of a write whose result nobody asked for, or TimeoutError when a device does
not answer within ``timeout`` seconds: then what the kernel holds stays alive, and close() can be
called again.)")
      .def_prop_ro(
          "closed", [](const HandleObject& self) { return self.belongs_to_parent() || !self.handle().is_open(); },
          "True after close().")
      .def(
          "stats", [](HandleObject& self) { return stats_dict(self.handle_of_this_process().stats()); },
          nb::sig("def stats(self) -> dict[str, typing.Any]"),
          R"(Counts since the handle was made: requests, failed, bytes, unfinished_requests, errors_by_errno, and
for "reads" and "writes" the same with blocks, bytes_by_route and latency_ns (percentiles from
submission to done).)")
      .def(
          "facts", [](HandleObject& self) { return facts_dict(self.handle_of_this_process().facts()); },
          nb::sig("def facts(self) -> dict[str, typing.Any]"),
          "What the handle settled on: engine, engine_detail, workers, block_bytes, queue_depth, staging_bytes and so "
          "on.")
      .def(
          "__enter__", [](nb::handle_t<HandleObject> self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Handle"))
      .def(
          "__exit__", [](HandleObject& self, nb::handle, nb::handle exception, nb::handle) { self.leave(exception); },
          nb::arg("exc_type").none(), nb::arg("exc").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, "
                  "traceback: types.TracebackType | None) -> None"),
          R"(Closes the handle. When an exception is in flight, unfinished reads are aborted, and a failure of
the closing is added to that exception as a note instead of raised.)")
      .def("__repr__", &describe);
}

}  // namespace

void bind_handle(nb::module_& module) {
  nb::class_<HandleObject> handle(module, "Handle", kHandleDoc, nb::is_weak_referenceable());
  bind_life(handle);
  bind_requests(handle);
}

}  // namespace headrace::python
