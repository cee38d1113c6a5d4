#include "layerpress/setup/opening/helper_request.h"

#include "layerpress/base/error.h"
#include "layerpress/base/system/child_process.h"
#include "layerpress/data/load_samples.h"

namespace layerpress::setup {

Json ask_helper(const HelperRequest& request, const RunControl& control,
                const std::function<void(std::string_view)>& on_line) {
  const std::filesystem::path script = data::helper_script().parent_path() / request.script;
  const std::string text = request.content.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
  Json answer;
  const ChildProgram program{{data::helper_interpreter(), "-s", script.string()},
                             text,
                             "set LAYERPRESS_PYTHON to a Python 3 that has the packages of requirements.txt",
                             request.gets_hub_token};
  const ChildResult result = run_child(program, control, [&](std::string_view line) {
    if (on_line) on_line(line);
    answer = Json::parse(line, nullptr, false);
  });
  if (result.exit_code != 0) throw IoError("{}", reported_error(result, request.where));
  if (!answer.is_object())
    throw IoError("{} the helper gave no answer; check LAYERPRESS_PYTHON and LAYERPRESS_HELPER", request.where);
  return answer;
}

}  // namespace layerpress::setup
