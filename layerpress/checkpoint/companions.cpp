#include <algorithm>
#include <filesystem>

#include "layerpress/checkpoint/writer.h"

namespace layerpress::checkpoint {

void write_companions(const Checkpoint& source, const Json& config, const std::filesystem::path& directory,
                      const std::vector<std::string>& without) {
  write_text_file(directory / "config.json", config.dump(2) + "\n");
  for (const std::filesystem::path& file : source.companion_files()) {
    const std::string name = file.filename().string();
    if (std::find(without.begin(), without.end(), name) != without.end()) continue;
    // Copied through the mapping: links of a download cache become regular files, synced and writable.
    const auto content = MappedFile::open(file);
    write_text_file(directory / name, {reinterpret_cast<const char*>(content->data()), content->size()});
  }
}

}  // namespace layerpress::checkpoint
