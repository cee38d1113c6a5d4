// What libFuzzer calls; one program per target.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/fuzz/input.h"
#include "tests/fuzz/mutation.h"
#include "tests/fuzz/targets.h"

#ifdef LAYERPRESS_FUZZ_TARGET  // which each target's own build of this file defines

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  layerpress::fuzz::prepare_process();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  layerpress::fuzz::feed(layerpress::fuzz::LAYERPRESS_FUZZ_TARGET, {reinterpret_cast<const char*>(data), size});
  return 0;
}

/// Two thirds of the changes keep an input's structure.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  if (seed % 3 != 0) {
    const std::string changed =
        layerpress::fuzz::LAYERPRESS_FUZZ_CHANGE({reinterpret_cast<const char*>(data), size}, seed / 3);
    if (!changed.empty() && changed.size() <= most) {
      std::memcpy(data, changed.data(), changed.size());
      return changed.size();
    }
  }
  return LLVMFuzzerMutate(data, size, most);
}

#endif
