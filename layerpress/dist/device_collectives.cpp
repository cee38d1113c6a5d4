#include "layerpress/dist/device_collectives.h"

#include <ATen/ATen.h>

#include <chrono>
#include <exception>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/dist/bounded.h"
#include "layerpress/dist/heartbeat.h"

namespace layerpress::dist {

using namespace std::chrono_literals;

namespace {

constexpr auto kBetweenLooks = 50ms;

[[noreturn]] void fail_to_connect(const std::string& cause) {
  throw DistributedError(
      "[dist.devices] NCCL cannot connect the ranks' GPUs: {}; NCCL_DEBUG=WARN shows more, LAYERPRESS_NCCL=0 goes "
      "through host memory",
      cause);
}

}  // namespace

DeviceCollectives::DeviceCollectives(c10::intrusive_ptr<c10d::Backend> backend, at::Device device,
                                     std::function<bool()> has_failed)
    : backend_(std::move(backend)), device_(device), has_failed_(std::move(has_failed)) {
  thread_ = std::thread([this] { guard(); });
}

DeviceCollectives::~DeviceCollectives() = default;

void DeviceCollectives::guard() {
  std::unique_lock lock(mutex_);
  while (!stop_ && !has_failed_()) changed_.wait_for(lock, kBetweenLooks, [&] { return stop_; });
  // c10d cannot be queried about operations while it aborts, so threads in wait() get time to look and leave first.
  if (changed_.wait_for(lock, 4 * kBetweenLooks, [&] { return stop_; })) return;
  lock.unlock();
  try {
    backend_->abort();
  } catch (const std::exception&) {
    // The ranks end for another reason, which was already reported.
  }
  lock.lock();
  aborted_ = true;
  changed_.notify_all();
}

void DeviceCollectives::connect(const MeetingOptions& options) {
  try {
    const auto sum = run_bounded<double>(
        [backend = backend_, device = device_] {
          std::vector<at::Tensor> one = {at::ones({1}, at::TensorOptions(at::kFloat).device(device))};
          backend->eagerConnectSingleDevice(one.front().device());  // the member `device` may lack its index
          backend->allreduce(one)->wait();
          return one.front().item<double>();
        },
        until_timeout(options, [] { fail_to_connect("it takes longer than the time-out"); }));
    if (sum != backend_->getSize())
      fail_to_connect(fmt::format("the sum of {} ones over them is {}", backend_->getSize(), sum));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    await_explanation(options);
    fail_to_connect(cause_of(error));
  }
}

void DeviceCollectives::wait(c10d::Work& work, const std::function<void()>& look) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  Clock::time_point looked = start;
  // A future's callback runs when the operation is launched, not when it is done.
  while (!work.isCompleted()) {
    const Clock::time_point now = Clock::now();
    if (now - looked >= kBetweenLooks) {
      look();
      looked = now;
    }
    // Short sleeps for short operations; long operations leave the processor to other threads.
    std::this_thread::sleep_for(now - start < 2ms ? 20us : 200us);
  }
  look();  // an aborted operation looks like a finished one
  work.wait();
}

bool DeviceCollectives::close(const std::function<void()>& look) {
  if (has_failed_()) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 3s, [&] { return aborted_; });
    return false;
  }
  try {
    run_bounded<bool>(
        [backend = backend_] {
          backend->shutdown();
          return true;
        },
        look);
  } catch (const std::exception&) {
    return false;
  }
  if (has_failed_()) return false;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  return true;
}

}  // namespace layerpress::dist
