// The first line is what a user names, the second the content of refs/main.
#include <cstdlib>
#include <system_error>

#include "layerpress/checkpoint/model_location.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {

void hub_cache(std::string_view input) {
  const auto [model, ref] = first_line(input);
  const std::filesystem::path cache = input_folder() / "cache";
  static const bool made = [&] {
    write_input("cache/models--org--name/snapshots/abc123/config.json", "{}");
    write_input("cache/models--org--name/secret/config.json", "{}");
    ::setenv("HF_HUB_CACHE", cache.c_str(), 1);
    return true;
  }();
  (void)made;
  write_input("cache/models--org--name/refs/main", ref);
  std::error_code failure;
  // A path means a folder of the user's choice.
  if (!checkpoint::parse_hub_model(std::string(model)) || std::filesystem::exists(model, failure)) return;
  const std::filesystem::path found = checkpoint::locate_model(std::string(model));
  require(found == cache / "models--org--name" / "snapshots" / "abc123",
          "a folder that is no snapshot: " + found.string());
}

}  // namespace layerpress::fuzz
