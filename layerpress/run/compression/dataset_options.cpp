#include "layerpress/run/compression/dataset_options.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace layerpress::run {

void warn_of_unused(const data::DatasetOptions& options, bool draws, const RunControl& control) {
  if (options.seed != 0 && !options.shuffle && !draws)
    control.message(LogLevel::kWarning,
                    "[options] --seed has no effect without --shuffle; samples are taken in their order");
  const std::string name = options.split.substr(0, options.split.find('['));
  std::error_code failure;
  if (name.empty() || name == "train" || !std::filesystem::is_regular_file(options.dataset, failure)) return;
  control.message(LogLevel::kWarning,
                  fmt::format("[data.split] {} is one file, so the name '{}' of a split chooses nothing; write "
                              "train[a:b] for some of its rows",
                              options.dataset, name));
}

}  // namespace layerpress::run
