#include "layerpress/dist/device_collectives.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/dist/bounded.h"

namespace layerpress::dist {
namespace {

using namespace std::chrono_literals;

/// Is done when it has been asked `questions` times.
struct CountedWork : c10d::Work {
  explicit CountedWork(int questions) : left(questions) {}
  bool isCompleted() override { return left == 0 || --left == 0; }
  bool wait(std::chrono::milliseconds) override {
    waited = true;
    return true;
  }
  int left;
  bool waited = false;
};

constexpr int kNever = std::numeric_limits<int>::max();

/// What NCCL is to c10d, for two ranks, of which the other does what this one does.
struct PairBackend : c10d::Backend {
  PairBackend() : Backend(0, 2) {}
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    tensors.front().mul_(factor);
    return c10::make_intrusive<CountedWork>(1);
  }
  void eagerConnectSingleDevice(at::Device) override {
    if (connecting.valid()) connecting.wait();
    if (!connects) throw std::runtime_error("no way there");
  }
  void shutdown() override {
    if (shutting_down.valid()) shutting_down.wait();
    is_shut_down = true;
  }
  void abort() override { is_aborted = true; }

  double factor = 2;
  bool connects = true;
  std::shared_future<void> connecting, shutting_down;  // what they wait for, if anything
  std::atomic<bool> is_shut_down{false}, is_aborted{false};
};

struct DeviceCollectivesTest : ::testing::Test {
  void TearDown() override {
    if (!devices->close([] {})) keep_forever(std::move(devices));
  }
  std::string connection_error(const std::function<void()>& wait_on = [] {}) {
    try {
      devices->connect({60s, wait_on});
    } catch (const DistributedError& error) {
      return error.what();
    }
    return "";
  }

  c10::intrusive_ptr<PairBackend> backend = c10::make_intrusive<PairBackend>();
  std::atomic<bool> failed{false};
  std::unique_ptr<DeviceCollectives> devices =
      std::make_unique<DeviceCollectives>(backend, at::Device(at::kCPU), [this] { return failed.load(); });
};

void throw_lost() { throw DistributedError("rank 1 is lost"); }

TEST_F(DeviceCollectivesTest, WaitsUntilAnOperationIsDone) {
  CountedWork work(7);
  devices->wait(work, [] {});
  EXPECT_EQ(work.left, 0);
  EXPECT_TRUE(work.waited);
}

TEST_F(DeviceCollectivesTest, WaitsNoLongerThanTheRanksLive) {
  CountedWork work(kNever);
  EXPECT_THROW(devices->wait(work, throw_lost), DistributedError);
}

TEST_F(DeviceCollectivesTest, TakesNoResultOfAnAbortedOperation) {
  CountedWork work(1);
  EXPECT_THROW(devices->wait(work, throw_lost), DistributedError);
  EXPECT_FALSE(work.waited);
}

TEST_F(DeviceCollectivesTest, AbortsWhenTheRanksHaveFailed) {
  failed = true;
  EXPECT_FALSE(devices->close([] {}));
  EXPECT_TRUE(backend->is_aborted);
  EXPECT_FALSE(backend->is_shut_down);
}

TEST_F(DeviceCollectivesTest, ShutsDownWhereNothingFailed) {
  EXPECT_TRUE(devices->close([] {}));
  EXPECT_TRUE(backend->is_shut_down);
  EXPECT_FALSE(backend->is_aborted);
  devices = std::make_unique<DeviceCollectives>(backend, at::Device(at::kCPU), [] { return false; });
}

TEST_F(DeviceCollectivesTest, LeavesAShutdownThatOthersHoldUp) {
  std::promise<void> other;
  backend->shutting_down = other.get_future();
  EXPECT_FALSE(devices->close(throw_lost));
  EXPECT_FALSE(backend->is_shut_down);
  other.set_value();
}

TEST_F(DeviceCollectivesTest, ConnectsAndAddsUp) { EXPECT_EQ(connection_error(), ""); }

TEST_F(DeviceCollectivesTest, RefusesDevicesThatAddUpWrongly) {
  backend->factor = 1;
  EXPECT_NE(connection_error().find("the sum of 2 ones over them is 1;"), std::string::npos) << connection_error();
}

TEST_F(DeviceCollectivesTest, SaysWhyDevicesCannotBeConnected) {
  backend->connects = false;
  EXPECT_NE(connection_error().find("cannot connect the ranks' GPUs: no way there; NCCL_DEBUG=WARN"), std::string::npos)
      << connection_error();
}

TEST_F(DeviceCollectivesTest, ConnectsNoLongerThanTheRanksLive) {
  std::promise<void> other;
  backend->connecting = other.get_future();
  EXPECT_EQ(connection_error(throw_lost), "rank 1 is lost");
  other.set_value();
}

}  // namespace
}  // namespace layerpress::dist
