#include "layerpress/runtime/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"

namespace layerpress::runtime {
namespace {

/// The records, one to a line, as a new file.
int write_anew(const std::filesystem::path& path, const std::string& text) {
  write_text_file(path, text);
  return ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
}

std::string lines_of(const std::vector<Json>& records) {
  std::string text;
  for (const Json& record : records) text += record.dump() + "\n";
  return text;
}

}  // namespace

std::vector<Json> Journal::read(const std::filesystem::path& path) {
  std::vector<Json> records;
  std::error_code failure;
  if (!std::filesystem::exists(path, failure)) return records;
  const std::string text = read_text_file(path);
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    try {
      Json record = parse_json(std::string_view(text).substr(begin, end - begin), path.string());
      if (!record.is_object()) break;
      records.push_back(std::move(record));
    } catch (const Error&) {
      break;
    }
    begin = end + 1;
  }
  return records;
}

Journal::Journal(std::filesystem::path path, const std::vector<Json>& records)
    : path_(std::move(path)), descriptor_(write_anew(path_, lines_of(records))) {
  if (descriptor_.value() < 0) throw CheckpointError("[runtime.journal] {}: {}", path_.string(), errno_text());
  end_ = std::filesystem::file_size(path_);
}

void Journal::append(const Json& record) {
  const std::string line = lines_of({record});
  if (!write_fully(descriptor_.value(), end_, line.data(), line.size()) || ::fdatasync(descriptor_.value()) != 0)
    throw CheckpointError("[runtime.journal] {}: {}", path_.string(), errno_text());
  end_ += line.size();
}

}  // namespace layerpress::runtime
