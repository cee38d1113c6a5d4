#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "layerpress/dist/rendezvous.h"

namespace layerpress::dist {

/// Collective operations from device to device. An operation whose partner is lost would never end, and would block
/// every thread that waits for the device. A thread therefore aborts the operations when the ranks have failed.
class DeviceCollectives {
 public:
  /// The thread calls `has_failed` for the lifetime of the object.
  DeviceCollectives(c10::intrusive_ptr<c10d::Backend> backend, at::Device device, std::function<bool()> has_failed);
  /// REQUIRES: close() has returned true.
  ~DeviceCollectives();
  DeviceCollectives(const DeviceCollectives&) = delete;
  DeviceCollectives& operator=(const DeviceCollectives&) = delete;

  /// Collective: connects the devices and sums a number over them. Throws DistributedError.
  void connect(const MeetingOptions& options);

  c10d::Backend& backend() { return *backend_; }

  /// Returns when an operation is done; later work on the current stream sees its result. Calls `look`, which may
  /// throw, repeatedly and once at the end.
  void wait(c10d::Work& work, const std::function<void()>& look);

  /// Closes the connections; ranks on one machine wait for each other meanwhile, until `look` throws. After a failure,
  /// waits some seconds until the operations are aborted. Returns false if something has not ended: then the object
  /// must not be destroyed.
  bool close(const std::function<void()>& look);

 private:
  void guard();

  c10::intrusive_ptr<c10d::Backend> backend_;
  at::Device device_;
  std::function<bool()> has_failed_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool stop_ = false, aborted_ = false;
  std::thread thread_;  // last member: starts after the others are initialized
};

}  // namespace layerpress::dist
