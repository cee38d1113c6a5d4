#include "layerpress/run/compression/own_files.h"

#include "layerpress/base/files/missing_folder.h"

namespace layerpress::run {

void require_own_file(const OneshotOptions& options, std::string_view name, const std::string& path) {
  if (path.empty()) return;
  layerpress::require_own_file(name, path,
                               {{"the dataset", options.dataset},
                                {"the recipe", options.recipe},
                                {"the model", options.model},
                                {"the importance file", options.from_imatrix},
                                {"the result", options.output},
                                {"the file of --summary", name == "--summary" ? "" : options.summary},
                                {"the file of --report", name == "--report" ? "" : options.report},
                                {"the file of --imatrix", name == "--imatrix" ? "" : options.imatrix}},
                               {{"a file of the model", options.model}});
}

void require_own_files(const OneshotOptions& options) {
  require_own_file(options, "--summary", options.summary);
  require_own_file(options, "--report", options.report);
  require_own_file(options, "--imatrix", options.imatrix);
}

}  // namespace layerpress::run
