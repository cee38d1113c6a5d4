#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "layerpress/base/system/memory_sampler.h"
#include "layerpress/base/system/phase_times.h"

namespace layerpress {
namespace {

void pass_time() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

TEST(RunCourse, SectionsDivideThePhases) {
  PhaseTimes times;
  {
    const auto outer = times.measure("open");
    pass_time();
    times.begin_section("first");  // the phase goes on
    pass_time();
    const auto inner = times.measure("solve");
    pass_time();
    times.begin_section("second");
    pass_time();
  }
  times.end_section();
  const auto& sections = times.sections();
  ASSERT_EQ(sections.size(), 2);
  EXPECT_EQ(sections[0].phases.size(), 2);
  EXPECT_EQ(sections[1].phases.count("open"), 1);
  EXPECT_GT(sections[0].start, 0);
  EXPECT_NEAR(sections[0].start + sections[0].seconds, sections[1].start, 1e-9);
  double solve = 0;
  for (const PhaseTimes::Section& section : sections) {
    double sum = 0;
    for (const auto& [phase, seconds] : section.phases) sum += seconds;
    EXPECT_LE(sum, section.seconds + 1e-9);  // the second goes on after the phases
    if (section.name == "first") {
      EXPECT_NEAR(sum, section.seconds, 1e-9);
    }
    solve += section.phases.at("solve");
  }
  EXPECT_NEAR(solve, times.phases().at("solve").seconds, 1e-9);
  EXPECT_GT(times.phases().at("open").seconds, sections[0].phases.at("open"));
}

TEST(RunCourse, HistoryKeepsMaximaInFewIntervals) {
  MemoryHistory history;
  for (int i = 0; i < 100'000; ++i) history.add(0.01 * i, static_cast<std::uint64_t>(i == 51'234 ? 900 : 100 + i % 7));
  EXPECT_LE(history.bytes.size(), 512u);
  EXPECT_GT(history.bytes.size(), 256u);
  EXPECT_NEAR(history.interval_seconds * static_cast<double>(history.bytes.size()), 1000, history.interval_seconds);
  const auto highest = std::max_element(history.bytes.begin(), history.bytes.end());
  EXPECT_EQ(*highest, 900u);
  EXPECT_NEAR(history.interval_seconds * static_cast<double>(highest - history.bytes.begin()), 512.34,
              history.interval_seconds);
}

TEST(RunCourse, IntervalsWithoutASampleHaveTheNextOne) {
  MemoryHistory history;
  history.add(0, 5);
  history.add(0.26, 7);
  EXPECT_EQ(history.bytes, (std::vector<std::uint64_t>{5, 7, 7, 7, 7, 7}));
}

}  // namespace
}  // namespace layerpress
