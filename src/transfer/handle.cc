// SPDX-License-Identifier: Apache-2.0
// The public face of HandleState.
// Any thread.
// A Handle is the only owner that closes; workers and unfinished transfers share the state.
#include <headrace/handle.h>

#include <chrono>
#include <utility>

#include "engine/registry.h"
#include "transfer/handle_state.h"

namespace headrace {
namespace {

using transfer::HandleState;
constexpr auto kCloseTimeout = std::chrono::seconds(30);

std::unexpected<Error> not_open(const char* operation) {
  return std::unexpected(Error{.code = ErrorCode::closed, .operation = operation, .detail = "the handle is closed"});
}

Result<Transfer> only(Result<std::vector<Transfer>> transfers) {
  if (!transfers) return std::unexpected(std::move(transfers).error());
  return std::move(transfers->front());
}

}  // namespace

Result<Handle> Handle::create(const HandleOptions& options) {
  std::vector<transfer::EngineCandidate> candidates;
  if (options.engine == EngineKind::automatic) {
    for (EngineKind kind : engine::automatic_order())
      candidates.push_back({.kind = kind, .factory = engine::factory_for(kind)});
  } else {
    candidates.push_back({.kind = options.engine, .factory = engine::factory_for(options.engine)});
  }
  Result<std::shared_ptr<HandleState>> state = HandleState::create(options, candidates);
  if (!state) return std::unexpected(std::move(state).error());
  return Handle(*std::move(state));
}

Handle::Handle(std::shared_ptr<HandleState> state) noexcept : state_(std::move(state)) {}
Handle::Handle(Handle&&) noexcept = default;

Handle& Handle::operator=(Handle&& other) noexcept {
  Handle old(std::move(*this));  // closes what this handle was
  state_ = std::move(other.state_);
  return *this;
}

Handle::~Handle() {
  if (!state_) return;
  if (!state_->in_own_process()) {
    // A child's copy of its parent's handle: threads, rings and locks in there are not this process's to touch.
    [[maybe_unused]] const auto* const leaked = new std::shared_ptr<HandleState>(std::move(state_));
    return;  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): the leak is the point
  }
  state_->abort_reads();
  const Status closed = state_->close(HandleState::Clock::now() + kCloseTimeout);
  if (!closed && closed.error().code == ErrorCode::timed_out) state_->detach();
}

Result<Transfer> Handle::read(const File& file, const ReadRequest& request) {
  const ReadItem item = {.file = file, .request = request};
  return state_ ? only(state_->read_many({&item, 1})) : not_open("read");
}

Result<Transfer> Handle::write(const File& file, const WriteRequest& request) {
  const WriteItem item = {.file = file, .request = request};
  return state_ ? only(state_->write_many({&item, 1})) : not_open("write");
}

Result<std::vector<Transfer>> Handle::read_many(std::span<const ReadItem> items) {
  if (!state_) return not_open("read");
  return state_->read_many(items);
}

Result<std::vector<Transfer>> Handle::write_many(std::span<const WriteItem> items) {
  if (!state_) return not_open("write");
  return state_->write_many(items);
}

Result<Transfer> Handle::replace(const std::string& path, const WriteRequest& request) {
  if (!state_ || !state_->usable()) return not_open("replace");
  uint64_t bytes = request.source.bytes;
  for (const ConstRegion& region : request.sources)
    bytes += region.bytes;
  if (request.offset_bytes != 0) {
    return std::unexpected(Error{.code = ErrorCode::invalid_argument,
                                 .operation = "replace",
                                 .path = path,
                                 .offset_bytes = request.offset_bytes,
                                 .length_bytes = bytes,
                                 .detail = "a file is replaced as a whole: the offset must be 0"});
  }
  Result<AtomicFile> file = AtomicFile::create(path, {.size_bytes = bytes, .durability = request.durability});
  if (!file) return std::unexpected(std::move(file).error());
  return state_->replace(std::make_unique<AtomicFile>(*std::move(file)), request);
}

Status Handle::close(Nanoseconds timeout) {
  if (!state_) return {};
  if (timeout.count() < 0 || timeout > std::chrono::hours(24 * 365)) return state_->close(std::nullopt);
  return state_->close(HandleState::Clock::now() + timeout);
}

bool Handle::is_open() const noexcept { return state_ && state_->usable(); }
HandleFacts Handle::facts() const { return state_ ? state_->facts() : HandleFacts{}; }
HandleStats Handle::stats() const { return state_ ? state_->stats() : HandleStats{}; }

}  // namespace headrace
