#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "layerpress/dist/rendezvous.h"

namespace layerpress::dist {

/// Collective operations from device to device. One whose partner is gone would run for ever, and with it every thread that
/// waits for the device; so a thread aborts them when the ranks have failed.
class DeviceCollectives {
 public:
  /// `has_failed` is asked by that thread as long as the object lives.
  DeviceCollectives(c10::intrusive_ptr<c10d::Backend> backend, at::Device device, std::function<bool()> has_failed);
  /// REQUIRES: close() has returned true.
  ~DeviceCollectives();
  DeviceCollectives(const DeviceCollectives&) = delete;
  DeviceCollectives& operator=(const DeviceCollectives&) = delete;

  /// Collective: connects the devices and adds up a number over them. Throws DistributedError.
  void connect(const MeetingOptions& options);

  c10d::Backend& backend() { return *backend_; }

  /// Returns when an operation is done; what is computed on the current stream from then on sees its result. Calls `look`,
  /// which may throw, meanwhile and at the end.
  void wait(c10d::Work& work, const std::function<void()>& look);

  /// Ends the connections, for which ranks of one machine wait for each other, as long as `look` does not throw; after a
  /// failure waits some seconds until the operations are aborted. False when something has not come to its end: the object
  /// has to stay.
  bool close(const std::function<void()>& look);

 private:
  void guard();

  c10::intrusive_ptr<c10d::Backend> backend_;
  at::Device device_;
  std::function<bool()> has_failed_;
  std::mutex mutex_;  // over what follows
  std::condition_variable changed_;
  bool stop_ = false, aborted_ = false;
  std::thread thread_;  // last: starts when everything above is there
};

}  // namespace layerpress::dist
