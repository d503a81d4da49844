// SPDX-License-Identifier: Apache-2.0
// The public face of TransferState, and wait() over many.
// Any thread.
// A Transfer shares its state.
#include <headrace/transfer.h>

#include <algorithm>
#include <utility>

#include "os/futex.h"
#include "transfer/transfer_state.h"

namespace headrace {
namespace {

using transfer::Observer;
using transfer::TransferState;
using Clock = TransferState::Clock;

std::optional<Clock::time_point> deadline_after(Transfer::Nanoseconds timeout) {
  if (timeout.count() < 0) return std::nullopt;
  const Clock::time_point now = Clock::now();
  // A timeout past the end of the clock is no timeout.
  if (timeout > Clock::time_point::max() - now) return std::nullopt;
  return now + timeout;
}

Result<uint64_t> no_transfer() {
  return std::unexpected(
      Error{.code = ErrorCode::closed, .operation = "result", .detail = "this Transfer names no request"});
}

constexpr const char* kForked = "the transfer belongs to the process that forked this one; make a new handle here";

}  // namespace

Transfer::Transfer() noexcept = default;
Transfer::~Transfer() = default;
Transfer::Transfer(const Transfer&) = default;
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(const Transfer&) = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;
Transfer::Transfer(std::shared_ptr<TransferState> state) noexcept : state_(std::move(state)) {}

Result<uint64_t> Transfer::result() const { return result_for(Nanoseconds{-1}); }

Result<uint64_t> Transfer::result_for(Nanoseconds timeout) const {
  if (!state_) return no_transfer();
  if (state_->wait(deadline_after(timeout), false)) return state_->take_result();
  if (state_->orphaned()) return std::unexpected(state_->closed_error(kForked));
  Error error = state_->closed_error("the wait ended first; the transfer goes on");
  error.code = ErrorCode::timed_out;
  return std::unexpected(std::move(error));
}

bool Transfer::wait_for(Nanoseconds timeout) const { return state_ && state_->wait(deadline_after(timeout), true); }
bool Transfer::done() const noexcept { return state_ && state_->done(); }
bool Transfer::running() const noexcept { return state_ && state_->started() && !state_->done(); }
bool Transfer::cancel() noexcept { return state_ && state_->cancel(); }
bool Transfer::cancelled() const noexcept { return state_ && state_->done() && state_->cancelled(); }
void Transfer::abort() noexcept {
  if (state_) state_->abort();
}
std::optional<Route> Transfer::route() const { return state_ ? state_->route() : std::nullopt; }

std::optional<uint32_t> Transfer::crc32() const { return state_ ? state_->crc32() : std::nullopt; }

void Transfer::on_done(std::function<void(const Transfer&)> callback) const {
  if (state_) state_->on_done([copy = *this, callback = std::move(callback)] { callback(copy); });
}

void Transfer::keep_alive(std::shared_ptr<void> owner) const {
  if (state_) state_->keep_alive(std::move(owner));
}

size_t wait(std::span<const Transfer> transfers, WaitFor condition, Transfer::Nanoseconds timeout) {
  const std::optional<Clock::time_point> deadline = deadline_after(timeout);
  const auto observer = std::make_shared<Observer>(condition == WaitFor::first_error);
  size_t observed = 0;
  for (const Transfer& transfer : transfers) {
    const std::shared_ptr<TransferState>& state = transfer.internal();
    if (state && !state->orphaned() && state->observe(observer)) {
      ++observed;
    } else if (state && state->done() && !state->cancelled() && !state->peek_result()) {
      observer->failed.store(true, std::memory_order_seq_cst);
    }
  }
  const size_t done_already = transfers.size() - observed;
  const size_t wanted = condition == WaitFor::any ? std::min<size_t>(1, transfers.size()) : transfers.size();
  observer->enough.store(wanted - std::min(wanted, done_already), std::memory_order_seq_cst);
  while (!observer->satisfied()) {
    std::optional<std::chrono::nanoseconds> left;
    if (deadline) {
      left = *deadline - Clock::now();
      if (left->count() <= 0) break;
    }
    (void)os::futex_wait(observer->fulfilled, 0, left);
  }
  const size_t done = done_already + observer->done.load(std::memory_order_acquire);
  if (done < transfers.size()) {
    for (const Transfer& transfer : transfers) {
      if (transfer.internal()) transfer.internal()->stop_observing(observer.get());
    }
  }
  return done;
}

}  // namespace headrace
