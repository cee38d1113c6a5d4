// `cat -s hub.py` takes the helper's place: it prints the input.
#include <cstdlib>
#include <string>

#include "layerpress/base/error.h"
#include "layerpress/base/system/child_process.h"
#include "layerpress/setup/opening/hub.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {

void hub_answers(std::string_view input) {
  static const bool set = [] {
    ::setenv("LAYERPRESS_PYTHON", "cat", 1);
    ::setenv("LAYERPRESS_HELPER", write_input("prepare.py", "").c_str(), 1);
    return true;
  }();
  (void)set;
  write_input("hub.py", input);
  (void)reported_error(ChildResult{1, "", std::string(input)}, "[hub]");
  const auto ask = [](auto&& request) {
    try {
      request();
    } catch (const IoError&) {  // of this request
    } catch (const CheckpointError&) {
    }
  };
  ask([] { setup::download_model("org/name", {}); });
  ask([] { (void)setup::upload_folder(input_folder(), "org/name", false, {}); });
}

}  // namespace layerpress::fuzz
