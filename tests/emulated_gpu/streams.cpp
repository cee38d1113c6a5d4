// Streams, events, pinned memory, and libtorch's questions about CUDA.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

#include "tests/emulated_gpu/device_memory.h"
#include "tests/emulated_gpu/late_copies.h"

namespace layerpress::emulated_gpu {
namespace {

thread_local c10::StreamId current_stream = 0;

c10::Stream stream_of(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceType static_type = c10::DeviceType::CUDA;

  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream_of(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    static std::atomic<c10::StreamId> last{0};
    return stream_of(++last);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(std::exchange(current_stream, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new LateCopies::Point();
    *static_cast<LateCopies::Point*>(*event) = LateCopies::instance().reached(stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) LateCopies::instance().wait(stream.id(), *static_cast<LateCopies::Point*>(event));
  }
  bool queryEvent(void*) const override { return false; }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) LateCopies::instance().finish(*static_cast<LateCopies::Point*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<LateCopies::Point*>(event);
  }
  bool queryStream(const c10::Stream&) const override { return false; }
  void synchronizeStream(const c10::Stream& stream) const override {
    LateCopies::instance().finish(LateCopies::instance().reached(stream.id()));
  }
  void synchronizeDevice(c10::DeviceIndex) const override { LateCopies::instance().finish_all(); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

/// Host memory that is known to be pinned.
class PinnedMemory : public c10::Allocator {
 public:
  static PinnedMemory& instance() {
    static auto* memory = new PinnedMemory();
    return *memory;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* pointer = std::aligned_alloc(64, (bytes / 64 + 1) * 64);
    const std::scoped_lock lock(mutex_);
    blocks_[static_cast<char*>(pointer)] = bytes;
    return {pointer, pointer, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  bool holds(const void* pointer) {
    const std::scoped_lock lock(mutex_);
    const auto* at = static_cast<const char*>(pointer);
    auto found = blocks_.upper_bound(at);
    if (found == blocks_.begin()) return false;
    --found;
    return at <= found->first + found->second;
  }

 private:
  static void release(void* pointer) {
    {
      const std::scoped_lock lock(instance().mutex_);
      instance().blocks_.erase(static_cast<char*>(pointer));
    }
    std::free(pointer);
  }

  std::mutex mutex_;
  std::map<const char*, std::size_t> blocks_;
};

// The name is the one that libtorch asks for.
class CUDAHooks : public at::CUDAHooksInterface {
 public:
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void deviceSynchronize(c10::DeviceIndex) const override { LateCopies::instance().finish_all(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &DeviceMemory::instance(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::instance(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  bool isPinnedPtr(const void* data) const override { return PinnedMemory::instance().holds(data); }
};

}  // namespace
}  // namespace layerpress::emulated_gpu

namespace at {
using layerpress::emulated_gpu::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

namespace c10 {
namespace {
const int kRegistered = (SetAllocator(DeviceType::CUDA, &layerpress::emulated_gpu::DeviceMemory::instance()), 0);
}
}  // namespace c10
