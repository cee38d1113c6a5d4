#include "layerpress/run/evaluation/evaluation_tasks.h"

#include <filesystem>
#include <system_error>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/model_location.h"
#include "layerpress/setup/opening/helper_request.h"

namespace layerpress::run {
namespace {

std::string folder_of(const std::string& model) {
  if (model.empty()) return "";
  const std::filesystem::path path = checkpoint::locate_model(model);
  if (!std::filesystem::is_directory(path))
    throw UsageError("[options] --tasks: {} is a file, but tasks are run by engines that need a folder; use --dataset",
                     model);
  return std::filesystem::absolute(path).string();
}

}  // namespace

void check_tasks(const EvaluateOptions& options) {
  if (options.engine != "transformers" && options.engine != "vllm")
    throw UsageError("[options] --engine: unknown value '{}'; {}", options.engine,
                     nearest_or_all(options.engine, {"transformers", "vllm"}));
  if (options.limit < 0) throw UsageError("[options] --limit: {} is negative", options.limit);
  if (options.tasks.empty() &&
      (options.limit > 0 || !options.task_folder.empty() || options.engine != EvaluateOptions().engine))
    throw UsageError("[options] --limit, --task-folder and --engine require --tasks");
  if (std::error_code failure;
      !options.task_folder.empty() && !std::filesystem::is_directory(options.task_folder, failure))
    throw UsageError("[options] --task-folder: {} is not a directory; name an existing one", options.task_folder);
}

Json run_tasks(const EvaluateOptions& options, const RunControl& control) {
  control.message(LogLevel::kInfo, fmt::format("[eval] running {} by {}", join(options.tasks), options.engine));
  return setup::ask_helper({"run_tasks.py",
                            "[eval.tasks]",
                            {{"model", folder_of(options.model)},
                             {"reference", folder_of(options.reference)},
                             {"tasks", options.tasks},
                             {"task_folder", options.task_folder},
                             {"engine", options.engine},
                             {"limit", options.limit},
                             {"device", options.device},
                             {"dtype", options.dtype},
                             {"download", options.download}},
                            /*gets_hub_token=*/options.download},
                           control);
}

}  // namespace layerpress::run
