#include "layerpress/distributed.h"

#include <chrono>
#include <memory>

#include "layerpress/base/error.h"
#include "layerpress/data/row_slice.h"
#include "layerpress/dist/division.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress {

std::unique_ptr<Distributed> init_dist(std::chrono::seconds timeout, const RunControl& control) {
  constexpr std::int64_t kLongest = 10'000'000;
  if (timeout.count() < 1 || timeout.count() > kLongest)
    throw UsageError("[dist] a timeout must be between 1 and {} s, got {}", kLongest, timeout.count());
  const auto environment = dist::read_environment();
  if (!environment) {
    if (const std::string launcher = dist::unused_launcher(); !launcher.empty())
      control.message(LogLevel::kWarning,
                      fmt::format("[dist.environment] {}, but MASTER_ADDR is not set, so that each does the whole run; "
                                  "set MASTER_ADDR and MASTER_PORT to where rank 0 is",
                                  launcher));
    return std::make_unique<Distributed>();
  }
  auto ranks = std::make_unique<Distributed>(*environment, timeout, control);
  setup::set_threads(ranks->cores());
  return ranks;
}

std::string get_rank_partition(const Distributed& ranks, const std::string& split, std::int64_t samples) {
  if (samples < 0) throw UsageError("[dist] sample count must not be negative, got {}", samples);
  if (split.find('[') != std::string::npos)
    throw UsageError("[dist] {} is already a slice; name the whole split", split);
  const dist::Slice part = dist::partition(samples, ranks.rank(), ranks.size());
  return fmt::format("{}[{}:{}]", split, part.first, part.last);
}

}  // namespace layerpress
