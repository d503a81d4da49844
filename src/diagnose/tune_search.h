// SPDX-License-Identifier: Apache-2.0
// The search: rounds with fewer points and larger repeats each, within bounds of bytes and time. It measures nothing itself.
// One thread.
// Borrows what measures, which must outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include <headrace/tune.h>

namespace headrace::diagnose {

inline constexpr uint32_t kFinalists = 2;  // of each direction
inline constexpr uint32_t kFinalRepeats = 5;
inline constexpr uint32_t kRivalRepeats = 3;

// What measures; a simulation in tests.
class TuneBench {
 public:
  virtual ~TuneBench() = default;
  // One repeat that moves the first `bytes` of each file.
  [[nodiscard]] virtual Result<IoSample> run(const TunePoint& point, IoDirection direction, uint64_t bytes) = 0;
  // The points of the last run are not to be measured again soon: what they hold may go.
  virtual void forget() = 0;
  // The other program, as `point` does it.
  [[nodiscard]] virtual Result<TuneRivalSample> run_rival(const TunePoint& point, IoDirection direction,
                                                          uint64_t bytes) = 0;
  [[nodiscard]] virtual double seconds() const = 0;  // since the call began
  virtual void expect(uint64_t bytes) = 0;           // about so many will be moved in all
};

// What the rounds of one direction move in each repeat, and how many points they have, so that all keeps within its budget.
struct TuneSizes {
  std::array<uint64_t, 4> bytes = {};  // of each file, by TuneRound
  uint64_t rival_bytes = 0;
  uint32_t second_points = 0;
};

struct TuneBounds {
  std::vector<IoDirection> directions;
  uint64_t io_bytes = 0;
  uint32_t files = 1;
  uint32_t loops = 1;
  double seconds_max = 0;
  std::array<uint64_t, 2> bytes_max = {};  // by direction; writes: with what fills the files
  TunePoint by_default = {};               // what the library's defaults come to
  bool rival = false;
};

// Nothing where `bytes_max` is too little to measure that many points: `least_bytes` would do, and `least_fill_bytes` of what may
// be written for the files that are read.
struct TuneSizing {
  std::optional<TuneSizes> sizes;
  uint64_t least_bytes = 0;
  uint64_t least_fill_bytes = 0;
};
[[nodiscard]] TuneSizing sizes_for(uint32_t points, const TuneBounds& bounds, IoDirection direction);

class TuneSearch {
 public:
  // The first point must be the library's defaults: it is measured first and compared with at the end.
  TuneSearch(TuneBounds bounds, TuneSpace asked, const std::vector<TunePoint>& points, TuneBench& bench);

  // An error where nothing can be measured. Interrupted later, the result holds what is known.
  [[nodiscard]] Status run();
  [[nodiscard]] TuneResult& result() noexcept { return result_; }

 private:
  [[nodiscard]] Status calibrate();
  [[nodiscard]] Status first_rounds();
  [[nodiscard]] Status last_round();
  void choose();
  void choose_one(IoDirection direction);
  void choose_both();
  [[nodiscard]] Status compare_with_rival(IoDirection direction);
  // The points of a round in turn, `repeats` times, in another order each time. Ends early without an error when its time is over.
  [[nodiscard]] Status play(std::vector<uint32_t> points, IoDirection direction, TuneRound round, uint32_t repeats,
                            double until_seconds);
  [[nodiscard]] Status measure(uint32_t point, IoDirection direction, TuneRound round);
  // By the latest round, up to `round`, in which there is one: the time may have been over before.
  struct Leaders {
    TuneRound round = TuneRound::first;
    std::vector<uint32_t> points;
  };
  [[nodiscard]] Leaders leaders(IoDirection direction, TuneRound round, size_t count) const;
  // That all of the last round had a turn in it: who had none cannot be told from who is slower.
  [[nodiscard]] bool last_round_counts(IoDirection direction) const;
  [[nodiscard]] uint32_t add(const TunePoint& point);
  [[nodiscard]] uint64_t expected_bytes();
  [[nodiscard]] double share(double part) const { return began_ + (bounds_.seconds_max - began_) * part; }
  [[nodiscard]] TuneSizes& sizes(IoDirection direction) { return sizes_[static_cast<size_t>(direction)]; }

  TuneBounds bounds_;
  TuneSpace asked_;
  TuneBench& bench_;
  TuneResult result_;
  std::array<TuneSizes, 2> sizes_ = {};
  std::vector<uint32_t> finalists_;
  std::mt19937_64 random_{20'260};  // fixed: two calls take the points in the same order
  double began_ = 0;                // when preparation was over
  std::optional<Error> first_error_;
};

}  // namespace headrace::diagnose
