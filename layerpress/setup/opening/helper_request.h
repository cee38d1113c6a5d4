#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "layerpress/base/json.h"
#include "layerpress/base/progress.h"

namespace layerpress::setup {

/// A request to one of the Python helpers beside prepare.py.
struct HelperRequest {
  std::string script;  ///< the file's name
  std::string where;   ///< begins messages about the helper itself, such as "[hub]"
  Json content;
  bool gets_hub_token = false;  ///< it asks the hub
};

/// Runs the helper and returns its answer, the last line of its output; `on_line` is given every line. Throws IoError
/// with the helper's own message if it fails.
Json ask_helper(const HelperRequest& request, const RunControl& control,
                const std::function<void(std::string_view)>& on_line = {});

}  // namespace layerpress::setup
