#include "layerpress/residency/host_copies.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <bit>
#include <utility>

namespace layerpress::residency {
namespace {

using EventPointer = std::shared_ptr<c10::Event>;

/// Two streams besides the computing one, one for each direction.
class StreamCopies : public HostCopies {
 public:
  explicit StreamCopies(const at::Device& device)
      : guard_(device.type()),
        device_(device),
        outwards_(guard_.getStreamFromGlobalPool(device_)),
        inwards_(guard_.getStreamFromGlobalPool(device_)) {}

  Arriving to_host(const at::Tensor& x) override {
    if (x.is_cpu()) return {x.pin_memory(), event_on(outwards_)};  // concatenated pieces are already on the host
    const at::Tensor source = x.contiguous();
    event_on(computing())->block(outwards_);
    const at::Tensor target = at::empty(source.sizes(), source.options().device(at::kCPU).pinned_memory(true));
    {
      const c10::StreamGuard guard(outwards_);
      target.copy_(source, /*non_blocking=*/true);
    }
    source.record_stream(outwards_);  // keeps its memory until the copy is done
    return {target, event_on(outwards_)};
  }

  Arriving to_device(const Arriving& x) override {
    event_of(x).block(inwards_);
    const c10::StreamGuard guard(inwards_);
    const at::Tensor target = x.tensor.to(device_, /*non_blocking=*/true);
    return {target, event_on(inwards_)};
  }

  at::Tensor on_device(const Arriving& x) override {
    event_of(x).block(computing());
    x.tensor.record_stream(computing());
    return x.tensor;
  }

  void await(const Arriving& x) const override { event_of(x).synchronize(); }

  void pace() override {
    const auto last = std::exchange(last_, {event_on(computing()), event_on(outwards_)});
    for (const EventPointer& event : {last.first, last.second})
      if (event) event->synchronize();
  }

 private:
  c10::Stream computing() const { return guard_.getStream(device_); }
  static c10::Event& event_of(const Arriving& x) { return *static_cast<c10::Event*>(x.arrival.get()); }
  EventPointer event_on(const c10::Stream& stream) const {
    auto event = std::make_shared<c10::Event>(device_.type());
    event->record(stream);
    return event;
  }

  c10::impl::VirtualGuardImpl guard_;
  at::Device device_;
  c10::Stream outwards_, inwards_;
  std::pair<EventPointer, EventPointer> last_;
};

}  // namespace

std::uint64_t HostCopies::host_bytes(std::uint64_t bytes) { return std::bit_ceil(bytes); }

std::unique_ptr<HostCopies> host_copies(const at::Device& device) {
  return device.is_cpu() ? nullptr : std::make_unique<StreamCopies>(device);
}

}  // namespace layerpress::residency
