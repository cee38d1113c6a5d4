#pragma once

#include <string>
#include <vector>

namespace layerpress {

/// The variables of this process's environment that a child gets, as NAME=value: what finds programs, libraries, caches and the
/// network, and the settings of Python, of Hugging Face's libraries and of threads. Keys and passwords of other services are not
/// among them. The hub's access token is one only `with_hub_token`.
std::vector<std::string> child_environment(bool with_hub_token);

}  // namespace layerpress
