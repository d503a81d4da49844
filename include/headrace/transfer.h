// SPDX-License-Identifier: Apache-2.0
// The future of one request: wait, poll, cancel, abort, result, and the route that the bytes took.
// Any thread. Copies share one state. Dropping every copy neither cancels the work nor frees the caller's memory.
// A Transfer is done only when the kernel holds nothing of it any more.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <headrace/buffer.h>
#include <headrace/engine_info.h>
#include <headrace/error.h>

namespace headrace {

// How the bytes of a finished request went. The counts are of payload bytes; direct + buffered is what was moved.
struct Route {
  EngineKind engine = EngineKind::automatic;
  uint64_t direct_bytes = 0;
  uint64_t buffered_bytes = 0;
  uint64_t staged_bytes = 0;           // of both, how many were copied through a staging slot
  uint64_t registered_bytes = 0;       // of both, how many used memory registered with the ring
  PageKind pages = PageKind::unknown;  // of the caller's memory, as far as it is known
  std::string why;                     // why not the faster route, in words; empty when there was none
};

namespace transfer {
class TransferState;
}

class HEADRACE_EXPORT Transfer {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  Transfer() noexcept;
  ~Transfer();
  Transfer(const Transfer&);
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(const Transfer&);
  Transfer& operator=(Transfer&&) noexcept;

  // Blocks until done. Bytes moved, or the error of the lowest offset that failed. Calling it again gives the same.
  [[nodiscard]] Result<uint64_t> result() const;
  // As result(), but gives up with ErrorCode::timed_out; the work goes on.
  [[nodiscard]] Result<uint64_t> result_for(Nanoseconds timeout) const;
  // True when done. Never collects the result. May return early (false) when a signal arrives.
  [[nodiscard]] bool wait_for(Nanoseconds timeout) const;

  [[nodiscard]] bool done() const noexcept;
  // Some block of it was sent and it is not done.
  [[nodiscard]] bool running() const noexcept;
  // True when nothing had been sent: nothing will be, and the result is ErrorCode::cancelled.
  bool cancel() noexcept;
  [[nodiscard]] bool cancelled() const noexcept;
  // Stops the blocks not yet sent. The transfer is done when those sent have come back.
  void abort() noexcept;

  // None until done.
  [[nodiscard]] std::optional<Route> route() const;
  // Of the bytes as they were moved, summed on the way. None until done, when the request did not ask for it, and when
  // not every byte was moved.
  [[nodiscard]] std::optional<uint32_t> crc32() const;
  // Once per call, on the dispatcher thread, after the transfer is done (at once if it is).
  void on_done(std::function<void(const Transfer&)> callback) const;
  // Holds `owner` until the transfer is done, then lets go of it on the dispatcher thread; a transfer that is done lets
  // go at once, in the calling thread. For memory whose owner must not be released on an I/O thread.
  void keep_alive(std::shared_ptr<void> owner) const;

  // For the library's own layers.
  explicit Transfer(std::shared_ptr<transfer::TransferState> state) noexcept;
  [[nodiscard]] const std::shared_ptr<transfer::TransferState>& internal() const noexcept { return state_; }

 private:
  std::shared_ptr<transfer::TransferState> state_;
};

enum class WaitFor : uint8_t { any, first_error, all };

// Blocks until any, all or the first failed one of `transfers` is done, or the timeout ends. A cancelled one did not
// fail. Returns the number that are done. Collects nothing. A negative timeout waits for ever.
HEADRACE_EXPORT size_t wait(std::span<const Transfer> transfers, WaitFor condition, Transfer::Nanoseconds timeout);

}  // namespace headrace
