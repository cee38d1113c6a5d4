// The journals of two ranks, the second one behind an empty line. Lines get the checksums that journals have.
#include "layerpress/compression/modifier.h"
#include "layerpress/output/journal.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {

namespace {

std::string with_checksums(std::string_view text) {
  std::string lines;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    if (end > 0) lines += output::Journal::line_of(std::string(text.substr(0, end)));
    text.remove_prefix(end + 1);
  }
  return lines + std::string(text);
}

}  // namespace

void run_folder(std::string_view input) {
  const std::size_t cut = input.find("\n\n");
  const bool two = cut != std::string_view::npos;
  write_input(output::Journal::file_name(0), with_checksums(two ? input.substr(0, cut + 1) : input));
  write_input(output::Journal::file_name(1), with_checksums(two ? input.substr(cut + 2) : ""));
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
