// SPDX-License-Identifier: Apache-2.0
// Verdicts follow from bytes: nothing else makes one "works", and what is slower says why and what to do.
#include <gtest/gtest.h>

#include "diagnose/report_trial.h"

namespace headrace::diagnose {
namespace {

constexpr uint64_t kBytes = 4 << 20;

class ReportVerdict : public testing::Test {
 protected:
  static RoundTrip trip(const char* shape) {
    RoundTrip trip = {.shape = shape, .length_bytes = kBytes, .bytes_right = true};
    trip.write = {.direct_bytes = kBytes, .registered_bytes = kBytes};
    trip.read = trip.write;
    return trip;
  }
  void judge_it() { judge(report_, folder_, locked_, facts_, best_); }

  FolderReport folder_;
  LockedMemoryFacts locked_ = {.limit_bytes = 8 << 20, .exempt = false};
  HandleFacts best_ = {.workers = 4, .queue_depth = 32};
  HandleFacts facts_ = best_;
  EngineReport report_ = {.engine = EngineKind::uring,
                          .detail = "plain ring, registered memory",
                          .round_trips = {trip("bulk"), trip("buffer"), trip("ragged")}};
};

TEST_F(ReportVerdict, WorksWhenAllCameBackRightByTheFastestRoute) {
  judge_it();
  EXPECT_EQ(report_.verdict, Verdict::works);
  EXPECT_EQ(report_.why, "");
  EXPECT_EQ(report_.remedy, "");
}

TEST_F(ReportVerdict, WithoutBytesIsFailed) {
  report_.round_trips.clear();
  judge_it();
  EXPECT_EQ(report_.verdict, Verdict::failed);
  EXPECT_NE(report_.why, "");
}

TEST_F(ReportVerdict, OneWrongShapeOfThreeIsFailedWithItsError) {
  report_.round_trips[2].bytes_right = false;
  report_.round_trips[2].error = Error{.code = ErrorCode::corrupt,
                                       .operation = "compare",
                                       .path = "/d",
                                       .offset_bytes = 12'345,
                                       .detail = "do not use it"};
  judge_it();
  EXPECT_EQ(report_.verdict, Verdict::failed);
  EXPECT_NE(report_.why.find("ragged: compare of '/d' at offset 12345"), std::string::npos) << report_.why;
  EXPECT_EQ(report_.remedy, "do not use it");
  report_.round_trips[2].error.reset();
  judge_it();
  EXPECT_EQ(report_.verdict, Verdict::failed) << "also without a reason";
}

TEST_F(ReportVerdict, WithoutDirectIsPartlyAndSaysWhy) {
  for (RoundTrip& trip : report_.round_trips) {
    trip.read = {.buffered_bytes = kBytes, .registered_bytes = kBytes, .why = "O_DIRECT was refused"};
    trip.write = trip.read;
  }
  judge_it();
  EXPECT_EQ(report_.verdict, Verdict::partly);
  EXPECT_EQ(report_.why, "O_DIRECT was refused");
  EXPECT_NE(report_.remedy, "");
}

TEST_F(ReportVerdict, InMemoryThereIsNothingBetterThanTheMemory) {
  folder_.file_system.in_memory = true;
  for (RoundTrip& trip : report_.round_trips)
    trip.read = trip.write = {.buffered_bytes = kBytes};
  judge_it();
  EXPECT_EQ(report_.verdict, Verdict::works);
  EXPECT_NE(report_.why.find("memory"), std::string::npos);
}

TEST_F(ReportVerdict, RefusedRegistrationNamesTheLimit) {
  for (RoundTrip& trip : report_.round_trips)
    trip.read.registered_bytes = trip.write.registered_bytes = 0;
  judge_it();
  EXPECT_EQ(report_.verdict, Verdict::partly);
  EXPECT_NE(report_.remedy.find("`ulimit -l`, now 8 MiB"), std::string::npos) << report_.remedy;
  report_.why = report_.remedy = "";
  report_.detail = "plain ring, no registered memory (Linux 5.19 has it)";
  judge_it();
  EXPECT_NE(report_.remedy.find("Linux 5.19"), std::string::npos) << report_.remedy;
}

TEST_F(ReportVerdict, BufferThatWasNotRegisteredIsToldFromStagingThatWas) {
  report_.round_trips[1].read.registered_bytes = 0;
  judge_it();
  EXPECT_EQ(report_.why, "a Buffer could not be registered with the ring");
}

TEST_F(ReportVerdict, EnginesThatRegisterNothingDoNotLackIt) {
  report_.engine = EngineKind::aio;
  for (RoundTrip& trip : report_.round_trips)
    trip.read.registered_bytes = trip.write.registered_bytes = 0;
  judge_it();
  EXPECT_EQ(report_.verdict, Verdict::works);
}

TEST_F(ReportVerdict, FewerPlacesThanAskedForIsPartlyAndSaidOnce) {
  report_.engine = EngineKind::aio;
  facts_.queue_depth = 8;
  facts_.workers = 1;
  judge_it();
  EXPECT_EQ(report_.verdict, Verdict::partly);
  EXPECT_EQ(report_.why, "8 blocks in flight per worker, not 32; 1 of 4 workers started");
  EXPECT_EQ(report_.remedy, "raise fs.aio-max-nr (`sysctl fs.aio-max-nr=1048576`)");
}

}  // namespace
}  // namespace headrace::diagnose
