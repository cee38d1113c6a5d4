// The journals of two ranks, the second one behind an empty line.
#include "layerpress/compression/modifier.h"
#include "layerpress/output/journal.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {

void run_folder(std::string_view input) {
  const std::size_t cut = input.find("\n\n");
  const bool two = cut != std::string_view::npos;
  write_input(output::Journal::file_name(0), two ? input.substr(0, cut + 1) : input);
  write_input(output::Journal::file_name(1), two ? input.substr(cut + 2) : std::string_view());
  const std::vector<Json> records = output::Journal::read_all(input_folder());
  for (std::size_t i = 1; i < records.size(); ++i) {
    require(output::Journal::has_all_sets(records[i], output::Journal::shard_sets(records[0])), "an unfinished record");
    try {
      if (const auto modules = records[i].find("modules"); modules != records[i].end() && modules->is_array())
        for (const Json& report : *modules) (void)compression::ModuleReport::from_json(report).to_json().dump();
    } catch (const CheckpointError&) {  // of one record
    }
  }
}

}  // namespace layerpress::fuzz
