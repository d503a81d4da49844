// SPDX-License-Identifier: Apache-2.0
// From requests to jobs: check, choose the path, merge what touches, count against the limit, hand to the queue.
// Any thread; the caller's.
// A prepared request owns its file and buffers; from then on the transfer's state does.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "base/align.h"
#include "os/error.h"
#include "transfer/handle_state.h"
#include "transfer/open_file.h"

namespace headrace::transfer {
namespace {

constexpr uint64_t kCacheProbeBytes = uint64_t{1} << 20;  // smaller reads are not worth asking the page cache about

constexpr uint64_t kStreamCopyBytes = uint64_t{8}
                                      << 20;  // what is moved by one call and less may be of use in the caches
constexpr uint64_t kGrowAheadBytes = uint64_t{8} << 20;  // shorter writes into a new file are not worth a call for it

const char* name_of(plan::Direction direction) { return direction == plan::Direction::read ? "read" : "write"; }

Error refused(const TransferState::Setup& setup, ErrorCode code, int errno_value, std::string detail) {
  return {.code = code,
          .errno_value = errno_value,
          .operation = name_of(setup.direction),
          .path = setup.file ? setup.file->path() : std::string(),
          .offset_bytes = setup.offset_bytes,
          .length_bytes = setup.length_bytes,
          .detail = std::move(detail)};
}

plan::Straight straight_for(CopyMode copy, bool in_buffer) {
  switch (copy) {
    case CopyMode::always: return plan::Straight::never;
    case CopyMode::never: return plan::Straight::always;
    case CopyMode::automatic: break;
  }
  return in_buffer ? plan::Straight::if_huge : plan::Straight::if_buffered;
}

}  // namespace

Error HandleState::closed_error() const {
  return {.code = ErrorCode::closed,
          .operation = "submit",
          .detail = in_own_process()
                        ? "the handle is closed"
                        : "the handle belongs to the process that forked this one; make a new handle here"};
}

Status HandleState::add_region(Prepared& prepared, Region region, CopyMode copy) const {
  TransferState::Setup& setup = prepared.setup;
  if (region.device.kind != DeviceKind::host) {
    return std::unexpected(refused(setup, ErrorCode::unavailable, 0,
                                   "memory of a GPU cannot be moved by this version; copy it to the host first"));
  }
  if (region.bytes == 0) return {};
  if (region.data == nullptr)
    return std::unexpected(
        refused(setup, ErrorCode::invalid_argument, EFAULT, "a region of more than zero bytes has a null pointer"));
  const uint64_t begin = setup.offset_bytes + setup.length_bytes;
  if (begin > static_cast<uint64_t>(INT64_MAX) || region.bytes > static_cast<uint64_t>(INT64_MAX) - begin) {
    return std::unexpected(
        refused(setup, ErrorCode::invalid_argument, EOVERFLOW, "the range ends past the largest file offset"));
  }
  Part part;
  part.begin = begin;
  part.end = begin + region.bytes;
  part.data = region.data;
  if (std::shared_ptr<memory::BufferStorage> buffer = memory::find_buffer(region.data, region.bytes)) {
    const bool registrable = buffer->registration() == BufferOptions::Register::when_used;
    if (registrable || options_.registered == Ladder::required) part.buffer_id = buffer->id();
    part.buffer_data = buffer->data();
    part.buffer_bytes = buffer->mapped_bytes();
    const bool huge = buffer->pages() != PageKind::small;
    part.straight = straight_for(copy, huge);
    if (prepared.parts.empty()) setup.pages = buffer->pages();
    if (!huge && copy == CopyMode::automatic) setup.reasons |= kReasonSmallPages;
    if (setup.buffers.empty() || setup.buffers.back() != buffer) setup.buffers.push_back(std::move(buffer));
  } else {
    if (options_.registered == Ladder::required && copy == CopyMode::never) {
      return std::unexpected(refused(setup, ErrorCode::invalid_argument, EINVAL,
                                     "registered=required and copy=never: only memory of a Buffer can be registered "
                                     "where it is; read into a Buffer, or allow the copy"));
    }
    part.straight = straight_for(copy, false);
    if (copy == CopyMode::automatic) setup.reasons |= kReasonSmallPages;
  }
  if (copy == CopyMode::always) setup.reasons |= kReasonCopyAlways;
  setup.length_bytes += region.bytes;
  prepared.parts.push_back(std::move(part));
  return {};
}

Status HandleState::choose_path(Prepared& prepared, CacheMode cache) {
  TransferState::Setup& setup = prepared.setup;
  OpenFile& file = *setup.file;
  const bool reading = setup.direction == plan::Direction::read;
  if (setup.length_bytes == 0) return {};
  const auto buffered = [&](uint32_t reason) {
    prepared.direct_wanted = false;
    // Those said why memory was staged on a direct route.
    setup.reasons = (setup.reasons & kReasonCopyAlways) | reason;
    return Status{};
  };
  if (options_.direct == Ladder::never) return buffered(kReasonDirectNever);
  if (reading && cache == CacheMode::use) return buffered(kReasonCacheUse);
  if (options_.direct == Ladder::automatic) {
    if (!file.has_device_below()) return buffered(kReasonDevice);
    if (file.in_memory()) return buffered(kReasonInMemory);
    if (!reading && setup.length_bytes < os::page_bytes()) return buffered(kReasonRaggedEdge);
    if (reading && cache == CacheMode::automatic && setup.length_bytes >= kCacheProbeBytes) {
      const std::optional<uint64_t> resident =
          file.system().resident_bytes(file.descriptor(), setup.offset_bytes, setup.length_bytes);
      if (resident && *resident >= setup.length_bytes / 2) return buffered(kReasonPageCache);
    }
  }
  if (file.direct_descriptor() < 0) {
    const std::string why = file.direct_refusal();
    if (options_.direct == Ladder::required)
      return std::unexpected(refused(setup, ErrorCode::unavailable, EOPNOTSUPP, "direct=required, but " + why));
    notice(Notice::direct_refused, fmt::format("'{}' goes through the page cache: {}", file.path(), why));
    return buffered(kReasonDirectRefused);
  }
  const uint64_t granule = file.granule_bytes();
  const uint64_t end = setup.offset_bytes + setup.length_bytes;
  if (!reading && (!base::is_aligned(setup.offset_bytes, granule) || !base::is_aligned(end, granule)))
    setup.reasons |= kReasonRaggedEdge;
  for (const Part& part : prepared.parts) {
    const bool aligned =
        base::is_aligned(reinterpret_cast<uintptr_t>(part.data) - part.begin, file.alignment().memory_bytes);
    if (part.straight == plan::Straight::if_huge && !aligned) setup.reasons |= kReasonMisaligned;
    if (part.straight == plan::Straight::always && !aligned) setup.reasons |= kReasonCopyNever;
  }
  return {};
}

Result<HandleState::Prepared> HandleState::begin_request(plan::Direction direction, const File& file,
                                                         uint64_t offset_bytes, int priority) {
  Prepared prepared;
  TransferState::Setup& setup = prepared.setup;
  setup.direction = direction;
  setup.offset_bytes = offset_bytes;
  setup.file = file.internal();
  prepared.priority = priority;
  const bool reading = direction == plan::Direction::read;
  if (!setup.file) return std::unexpected(refused(setup, ErrorCode::closed, 0, "the file is not open"));
  if (reading ? !setup.file->readable() : !setup.file->writable()) {
    return std::unexpected(
        refused(setup, ErrorCode::system, EBADF,
                reading ? "the file is open for writing only" : "the file is open for reading only"));
  }
  if (priority < kPriorityMin || priority > kPriorityMax) {
    return std::unexpected(
        refused(setup, ErrorCode::invalid_argument, EINVAL,
                fmt::format("priority is {}; allowed: {} to {}", priority, kPriorityMin, kPriorityMax)));
  }
  return prepared;
}

Result<HandleState::Prepared> HandleState::prepare_read(const ReadItem& item) {
  const ReadRequest& request = item.request;
  Result<Prepared> begun = begin_request(plan::Direction::read, item.file, request.offset_bytes, request.priority);
  if (!begun) return begun;
  Prepared& prepared = *begun;
  prepared.setup.end_of_file = request.end_of_file;
  prepared.setup.checksum = request.checksum;
  if (Status added = add_region(prepared, request.target, request.copy); !added)
    return std::unexpected(std::move(added).error());
  for (const Region& region : request.targets) {
    if (Status added = add_region(prepared, region, request.copy); !added)
      return std::unexpected(std::move(added).error());
  }
  if (Status chosen = choose_path(prepared, request.cache); !chosen) return std::unexpected(std::move(chosen).error());
  return begun;
}

Result<HandleState::Prepared> HandleState::prepare_write(const WriteItem& item) {
  const WriteRequest& request = item.request;
  Result<Prepared> begun = begin_request(plan::Direction::write, item.file, request.offset_bytes, request.priority);
  if (!begun) return begun;
  Prepared& prepared = *begun;
  prepared.setup.checksum = request.checksum;
  const auto add = [&](const ConstRegion& region) {
    // Parts are the same for both directions; a write never writes through its pointer.
    return add_region(prepared,
                      {.data = const_cast<std::byte*>(region.data), .bytes = region.bytes, .device = region.device},
                      request.copy);
  };
  if (Status added = add(request.source); !added) return std::unexpected(std::move(added).error());
  for (const ConstRegion& region : request.sources) {
    if (Status added = add(region); !added) return std::unexpected(std::move(added).error());
  }
  if (Status chosen = choose_path(prepared, CacheMode::bypass); !chosen)
    return std::unexpected(std::move(chosen).error());
  prepared.truncate_first = request.truncate == Truncate::at_start;
  if (request.durability == Durability::data) {
    prepared.setup.sync = std::make_shared<SyncGroup>();
    prepared.setup.sync->file = prepared.setup.file;
  }
  return begun;
}

template <typename Item>
Result<std::vector<Transfer>> HandleState::submit_all(std::span<const Item> items,
                                                      Result<Prepared> (HandleState::*prepare)(const Item&)) {
  std::vector<Prepared> all;
  all.reserve(items.size());
  for (const Item& item : items) {
    Result<Prepared> prepared = (this->*prepare)(item);
    if (!prepared) return std::unexpected(std::move(prepared).error());
    all.push_back(*std::move(prepared));
  }
  return submit(std::move(all));
}

Result<std::vector<Transfer>> HandleState::read_many(std::span<const ReadItem> items) {
  return submit_all(items, &HandleState::prepare_read);
}

Result<std::vector<Transfer>> HandleState::write_many(std::span<const WriteItem> items) {
  Result<std::vector<Transfer>> started = submit_all(items, &HandleState::prepare_write);
  if (!started) {
    for (const WriteItem& item : items) {
      if (item.file.is_open()) item.file.internal()->write_refused();
    }
  }
  return started;
}

Status HandleState::truncate_files(std::span<Prepared> prepared) {
  std::unordered_set<OpenFile*> cut;
  for (const Prepared& item : prepared) {
    OpenFile& file = *item.setup.file;
    if (!item.truncate_first || file.created() || !file.has_length() || !cut.insert(&file).second) continue;
    if (Status done = file.system().truncate(file.descriptor(), 0, file.path()); !done) return done;
  }
  return {};
}

Result<Transfer> HandleState::replace(std::unique_ptr<AtomicFile> file, const WriteRequest& request) {
  WriteItem item = {.file = file->file(), .request = request};
  item.request.durability = Durability::none;  // the commit syncs
  Result<Prepared> prepared = prepare_write(item);
  if (!prepared) return std::unexpected(std::move(prepared).error());
  prepared->setup.atomic_file = std::move(file);
  std::vector<Prepared> all;
  all.push_back(*std::move(prepared));
  Result<std::vector<Transfer>> transfers = submit(std::move(all));
  if (!transfers) return std::unexpected(std::move(transfers).error());
  return transfers->front();
}

Result<uint32_t> HandleState::reserve(size_t wanted, Clock::time_point& ask_at) {
  // The caller's thread may have a signal handler that wants to end a call which goes on and on.
  const auto interrupted = [&] {
    if (!options_.interrupted || Clock::now() < ask_at) return false;
    ask_at = Clock::now() + interrupt_every_;
    return options_.interrupted();
  };
  const auto interruption = [] {
    return std::unexpected(Error{.code = ErrorCode::interrupted,
                                 .operation = "submit",
                                 .detail = "the wait for room among the unfinished requests was interrupted"});
  };
  if (interrupted()) return interruption();
  std::unique_lock lock(mutex_);
  const auto room = [this] { return facts_.requests_max - std::min<uint64_t>(unfinished_, facts_.requests_max); };
  if (options_.when_full == WhenFull::fail && room() < wanted) {
    return std::unexpected(
        Error{.code = ErrorCode::limit_reached,
              .operation = "submit",
              .detail = fmt::format("{} requests are unfinished and requests_max is {}; wait for some, or raise it",
                                    unfinished_, facts_.requests_max)});
  }
  while (room() == 0 && usable()) {
    ++waiters_;
    if (options_.interrupted) {
      (void)changed_.wait_until(lock, ask_at);
    } else {
      changed_.wait(lock);
    }
    --waiters_;
    if (!options_.interrupted) continue;
    lock.unlock();
    if (interrupted()) return interruption();
    lock.lock();
  }
  if (!usable()) return std::unexpected(closed_error());
  const auto granted = static_cast<uint32_t>(std::min<uint64_t>(room(), wanted));
  unfinished_ += granted;
  return granted;
}

void HandleState::give_places_back(uint32_t count) {
  const std::lock_guard lock(mutex_);
  unfinished_ -= count;
  if (waiters_ != 0) changed_.notify_all();
}

Result<std::vector<Transfer>> HandleState::submit(std::vector<Prepared> prepared) {
  if (!usable()) return std::unexpected(closed_error());
  std::vector<Transfer> transfers;
  transfers.reserve(prepared.size());
  std::span<Prepared> rest(prepared);
  Clock::time_point ask_at = Clock::now() + interrupt_every_;
  while (!rest.empty()) {
    const Result<uint32_t> granted = reserve(rest.size(), ask_at);
    if (!granted && transfers.empty()) return std::unexpected(granted.error());
    if (granted && transfers.empty()) {
      if (Status cut = truncate_files(prepared); !cut) {
        give_places_back(*granted);
        return std::unexpected(std::move(cut).error());
      }
    }
    if (!granted) {
      // The handle closed, or the wait for room was interrupted: what was started goes on, the rest is never sent.
      {
        const std::lock_guard lock(mutex_);
        unfinished_ += rest.size();
      }
      for (Prepared& item : rest) {
        item.setup.handle = shared_from_this();
        item.setup.sync.reset();
        const uint64_t length = item.setup.length_bytes;
        const auto state = std::make_shared<TransferState>(std::move(item.setup));
        state->fail_at(state->offset_bytes(), granted.error().code, 0, name_of(state->direction()),
                       "not sent: " + granted.error().detail);
        transfers.emplace_back(state);
        length != 0 ? state->resolve(length) : state->resolve_empty();
      }
      break;
    }
    start(rest.first(*granted), transfers);
    rest = rest.subspan(*granted);
  }
  return transfers;
}

void HandleState::start(std::span<Prepared> prepared, std::vector<Transfer>& transfers) {
  std::vector<std::shared_ptr<TransferState>> states;
  states.reserve(prepared.size());
  // One datasync per file for what is started here, and no more: members that still wait for room among the unfinished
  // requests would keep those written already from finishing, and so would never get any.
  std::unordered_map<OpenFile*, std::shared_ptr<SyncGroup>> groups;
  for (Prepared& item : prepared) {
    item.setup.handle = shared_from_this();
    if (item.setup.sync) {
      item.setup.sync = groups.try_emplace(item.setup.file.get(), item.setup.sync).first->second;
      item.setup.sync->handle = item.setup.handle;
      item.setup.sync->unwritten.fetch_add(1, std::memory_order_relaxed);
      item.setup.sync->priority = std::max(item.setup.sync->priority, item.priority);
    }
    item.file = item.setup.file.get();
    item.empty = item.setup.length_bytes == 0;
    for (const std::shared_ptr<memory::BufferStorage>& buffer : item.setup.buffers)
      buffer->watch(shared_from_this());
    states.push_back(std::make_shared<TransferState>(std::move(item.setup)));
    for (Part& part : item.parts)
      part.owner = states.back();
    transfers.emplace_back(states.back());
  }
  // Ranges of one file that touch become one job, in the order of their offsets.
  std::vector<uint32_t> order(prepared.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto file_of = [&](uint32_t i) { return prepared[i].file; };
  if (prepared.size() > 1) {
    // Ties by place in the call. (stable_sort would do, but its libstdc++ of GCC 12 does not compile with clang 19.)
    std::ranges::sort(order, [&](uint32_t a, uint32_t b) {
      if (file_of(a) != file_of(b)) return std::less<>{}(file_of(a), file_of(b));
      if (states[a]->offset_bytes() != states[b]->offset_bytes())
        return states[a]->offset_bytes() < states[b]->offset_bytes();
      return a < b;
    });
  }
  std::shared_ptr<Job> job;
  std::vector<std::shared_ptr<Job>> jobs;
  for (uint32_t i : order) {
    Prepared& item = prepared[i];
    if (item.parts.empty()) continue;
    const bool touches = job != nullptr && job->file == item.file && job->end() == item.parts.front().begin &&
                         job->priority == item.priority && job->direct_wanted == item.direct_wanted;
    if (!touches) {
      job = std::make_shared<Job>();
      job->direction = states[i]->direction();
      job->priority = item.priority;
      job->file = item.file;
      job->direct_wanted = item.direct_wanted;
      job->position = item.parts.front().begin;
      jobs.push_back(job);
    }
    std::ranges::move(item.parts, std::back_inserter(job->parts));
    states[i]->attach(job);
  }
  job.reset();
  uint64_t bytes = 0;
  for (const std::shared_ptr<Job>& one : jobs)
    bytes += one->end() - one->position;
  for (const std::shared_ptr<Job>& one : jobs)
    one->past_caches = bytes >= kStreamCopyBytes;
  uint64_t file_end = 0;
  for (size_t i = jobs.size(); i-- > 0;) {  // a file's jobs follow each other, in the order of their offsets
    Job& one = *jobs[i];
    if (i + 1 == jobs.size() || jobs[i + 1]->file != one.file) file_end = 0;
    if (one.direction != plan::Direction::write || !one.direct_wanted || !one.file->created() ||
        one.end() - one.position < kGrowAheadBytes)
      continue;
    file_end = std::max(file_end, one.end());
    one.grow_to = file_end;
  }
  for (std::shared_ptr<Job>& one : jobs)
    enqueue(std::move(one));
  for (size_t i = 0; i < prepared.size(); ++i) {
    if (prepared[i].empty) states[i]->resolve_empty();
  }
}

}  // namespace headrace::transfer
