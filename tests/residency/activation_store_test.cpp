#include "layerpress/residency/activation_store.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <utility>

#include "layerpress/base/error.h"
#include "tests/checkpoint/temporary_folder.h"

namespace layerpress::residency {
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

/// Copies that arrive as late as they may: what nobody has waited for holds NaN.
class LateCopies : public HostCopies {
 public:
  Arriving to_host(const at::Tensor& x) override {
    ++to_host_;
    return late(x, [] {});
  }
  Arriving to_device(const Arriving& x) override {
    ++to_device_;
    return late(x.tensor, [x] { arrive(x); });
  }
  at::Tensor on_device(const Arriving& x) override {
    arrive(x);
    return x.tensor;
  }
  void await(const Arriving& x) const override { arrive(x); }
  void pace() override { ++paces_; }

  int to_host_ = 0, to_device_ = 0, paces_ = 0;

 private:
  using Work = std::function<void()>;
  static Arriving late(const at::Tensor& source, Work before) {
    const at::Tensor target = at::full_like(source, std::numeric_limits<float>::quiet_NaN());
    return {target, std::make_shared<Work>([source, target, before = std::move(before)] {
              before();
              target.copy_(source);
            })};
  }
  static void arrive(const Arriving& x) {
    auto& work = *static_cast<Work*>(x.arrival.get());
    if (work) std::exchange(work, nullptr)();
  }
};

TEST(ActivationStore, ValuesOnTheHostArriveBeforeTheyAreRead) {
  auto copies = std::make_shared<LateCopies>();
  ActivationStore::Options options;
  options.copies = copies;
  ActivationStore store(2, options);
  store.put(kA, 0, rows(5, 1));
  store.put(kA, 1, rows(7, 2));
  EXPECT_EQ(store.memory_bytes(), 256u + 256u);  // 160 and 224 bytes, in powers of two
  store.read_ahead({kA}, 1);
  store.read_ahead({kA}, 2);  // behind the last one
  EXPECT_EQ(copies->to_device_, 1);
  EXPECT_TRUE(at::equal(store.get(kA, 0), rows(5, 1)));
  EXPECT_TRUE(at::equal(store.get(kA, 1), rows(7, 2)));
  EXPECT_EQ(copies->to_device_, 2) << "what was fetched ahead comes once";
  EXPECT_TRUE(at::equal(store.get(kA, 1), rows(7, 2))) << "and again when it is read again";
  EXPECT_EQ(copies->paces_, 2);
  store.put(kA, 0, rows(5, 3));
  EXPECT_TRUE(at::equal(store.get(kA, 0), rows(5, 3)));
  store.drop(kA);
  EXPECT_EQ(store.memory_bytes(), 0u);
}

TEST(ActivationStore, CopiesDoNotConcernWhatIsOnDisk) {
  const test::TemporaryFolder folder;
  ActivationStore::Options options = on_disk(folder);
  auto copies = std::make_shared<LateCopies>();
  options.copies = copies;
  ActivationStore store(2, options);
  EXPECT_FALSE(write_boundary(store).is_null());
  store.read_ahead({kA}, 1);
  EXPECT_TRUE(at::equal(store.get(kA, 1), rows(7, 2)));
  EXPECT_EQ(copies->to_host_ + copies->to_device_, 0);
}

}  // namespace
}  // namespace layerpress::residency
