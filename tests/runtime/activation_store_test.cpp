#include "layerpress/runtime/activation_store.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::runtime {
namespace {

constexpr graph::ValueId kA = 3, kB = 8;

ActivationStore::Options on_disk(const test::TemporaryFolder& folder) {
  ActivationStore::Options options;
  options.memory_limit = 0;
  options.scratch = folder / "scratch";
  return options;
}

at::Tensor rows(std::int64_t tokens, double value) { return at::full({tokens, 16}, value, at::kBFloat16); }

/// Two batches of 5 and 7 tokens; A and B are stored.
Json write_boundary(ActivationStore& store) {
  for (std::size_t batch = 0; batch < 2; ++batch) {
    store.put(kA, batch, rows(batch == 0 ? 5 : 7, 1.0 + static_cast<double>(batch)));
    store.put(kB, batch, rows(batch == 0 ? 5 : 7, 10.0 + static_cast<double>(batch)));
  }
  return store.boundary(4, {kA, kB});
}

ActivationStore::Expected expected() {
  ActivationStore::Expected expected;
  expected.index = 4;
  expected.shapes = {{kA, {{5, 16}, {7, 16}}}, {kB, {{5, 16}, {7, 16}}}};
  return expected;
}

TEST(ActivationStore, RestoresABoundary) {
  const test::TemporaryFolder folder;
  Json boundary;
  {
    ActivationStore store(2, on_disk(folder));
    boundary = Json::parse(write_boundary(store).dump());
  }
  ActivationStore store(2, on_disk(folder));
  ASSERT_TRUE(store.restore(boundary, expected()));
  EXPECT_TRUE(at::equal(store.get(kA, 1), rows(7, 2)));
  EXPECT_TRUE(at::equal(store.get(kB, 0), rows(5, 10)));
}

TEST(ActivationStore, KeepsABoundaryUntilALaterOneIsDurable) {
  const test::TemporaryFolder folder;
  Json boundary;
  {
    ActivationStore store(2, on_disk(folder));
    boundary = write_boundary(store);
    store.drop(kA);
    store.drop(kB);
    for (graph::ValueId value = 20; value < 30; ++value) store.put(value, 0, rows(7, 99));
  }
  // A crash here, and another one after the run has gone on for a while.
  for (int crash = 0; crash < 2; ++crash) {
    ActivationStore store(2, on_disk(folder));
    ASSERT_TRUE(store.restore(boundary, expected())) << crash;
    store.drop(kA);
    store.drop(kB);
    for (graph::ValueId value = 20; value < 30; ++value) store.put(value, 1, rows(7, 98));
  }
  {
    ActivationStore store(2, on_disk(folder));
    ASSERT_TRUE(store.restore(boundary, expected()));
    store.drop(kA);
    store.drop(kB);
    store.boundary_is_durable(5);
    for (graph::ValueId value = 20; value < 30; ++value) store.put(value, 1, rows(7, 97));
  }
  ActivationStore store(2, on_disk(folder));
  EXPECT_FALSE(store.restore(boundary, expected()));
}

TEST(ActivationStore, RefusesWhatIsNotAsDescribed) {
  const test::TemporaryFolder folder;
  Json boundary;
  {
    ActivationStore store(2, on_disk(folder));
    boundary = write_boundary(store);
  }
  const auto is_refused = [&](const std::function<void(Json&)>& change) {
    Json changed = boundary;
    change(changed);
    ActivationStore store(2, on_disk(folder));
    return !store.restore(changed, expected());
  };
  EXPECT_TRUE(is_refused([](Json& b) { b.erase("3"); }));
  EXPECT_TRUE(is_refused([](Json& b) { b["9"] = b["3"]; }));
  EXPECT_TRUE(is_refused([](Json& b) { b["3"] = "text"; }));
  EXPECT_TRUE(is_refused([](Json& b) { b["3"][0] = 7; }));
  EXPECT_TRUE(is_refused([](Json& b) { b["3"].erase(1); }));
  EXPECT_TRUE(is_refused([](Json& b) { b["3"][0]["shape"] = {5, 15}; }));
  EXPECT_TRUE(is_refused([](Json& b) { b["3"][0]["shape"] = {4294967296, 4294967296}; }));
  EXPECT_TRUE(is_refused([](Json& b) { b["3"][0]["offset"] = b["8"][0]["offset"]; }));
  EXPECT_TRUE(is_refused([](Json& b) { b["3"][0]["offset"] = 1ull << 40; }));
  EXPECT_TRUE(is_refused([](Json& b) { b["3"][0]["dtype"] = 4; }));
  EXPECT_TRUE(is_refused([](Json& b) { b["3"][0]["checksum"] = "0000000000000000"; }));
  EXPECT_TRUE(is_refused([](Json& b) { b["3"][0].erase("length"); }));
  EXPECT_TRUE(is_refused([](Json& b) { b = nullptr; }));
  EXPECT_FALSE(is_refused([](Json&) {}));
}

TEST(ActivationStore, DescribesNoBoundaryThatIsPartlyInMemory) {
  const test::TemporaryFolder folder;
  ActivationStore::Options options = on_disk(folder);
  options.memory_limit = 200;  // holds one of the values
  ActivationStore store(2, options);
  EXPECT_TRUE(write_boundary(store).is_null());
  EXPECT_GT(store.memory_bytes(), 0u);
}

}  // namespace
}  // namespace layerpress::runtime
