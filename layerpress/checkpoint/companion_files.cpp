#include "layerpress/checkpoint/companion_files.h"

#include <algorithm>
#include <set>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"

namespace layerpress::checkpoint {
namespace {

std::string_view text_of(const MappedFile& file) { return {reinterpret_cast<const char*>(file.data()), file.size()}; }

}  // namespace

bool is_preprocessing_file(const std::filesystem::path& companion) {
  static const std::set<std::string> kKinds = {".jinja", ".model", ".py", ".tiktoken"};
  const std::string name = companion.filename().string();
  const auto begins = [&](const char* start) { return name.starts_with(start); };
  return kKinds.contains(companion.extension().string()) || name.ends_with("processor_config.json") ||
         begins("tokenizer") || begins("vocab") || begins("merges") || begins("special_tokens_map") ||
         begins("added_tokens") || begins("chat_template");
}

std::vector<std::filesystem::path> damaged_companions(const Checkpoint& checkpoint) {
  std::vector<std::filesystem::path> damaged;
  if (checkpoint.directory().empty()) return damaged;
  for (const std::filesystem::path& file : checkpoint.companion_files()) {
    const auto content = MappedFile::open(checkpoint.directory() / file);
    const bool is_parsed = is_preprocessing_file(file) || file == "generation_config.json";
    if (is_parsed && file.extension() == ".json" && !Json::accept(text_of(*content))) damaged.push_back(file);
  }
  return damaged;
}

void require_companions(const Checkpoint& source) {
  for (const std::filesystem::path& file : damaged_companions(source))
    throw CheckpointError("[checkpoint.files] {}: is no JSON, so that no engine could load the result; fetch it again",
                          (source.directory() / file).string());
}

void write_companions(const Checkpoint& source, const Json& config, const std::filesystem::path& directory,
                      const std::vector<std::string>& without) {
  write_text_file(directory / "config.json", config.dump(2) + "\n");
  for (const std::filesystem::path& file : source.companion_files()) {
    if (std::find(without.begin(), without.end(), file.string()) != without.end()) continue;
    if (file.has_parent_path()) std::filesystem::create_directories(directory / file.parent_path());
    // Copied through the mapping: links of a download cache become regular files, synced and writable.
    write_text_file(directory / file, text_of(*MappedFile::open(source.directory() / file)));
  }
}

}  // namespace layerpress::checkpoint
