#include "layerpress/base/progress.h"

#include "layerpress/base/error.h"

namespace layerpress {

void RunControl::check_stop() const {
  if (stop_requested != nullptr && stop_requested->load(std::memory_order_relaxed))
    throw InterruptedError("[run] stopped on request");
  if (supervisor != nullptr) supervisor->check();
}

}  // namespace layerpress
