#include "layerpress/quant/targets/group_targets.h"
#include "layerpress/quant/targets/matching.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {

void name_patterns(std::string_view input) {
  const auto [pattern, names] = first_line(input);
  const quant::TargetList list({std::string(pattern)}, "recipe");
  const quant::GroupTargets groups({{{std::string(pattern), "Linear"}, "recipe"}, {{"re:.*mlp.*"}, "recipe"}});
  for (const std::string_view name : lines_of(names)) {
    const quant::ModuleName module{std::string(name), {"Linear"}};
    const bool matches = list.matches(module);
    require(!matches || list.unmatched().empty(), "a pattern that matched and did not");
    (void)groups.group_of(module);
    (void)groups.first_group_of(module);
  }
}

}  // namespace layerpress::fuzz
