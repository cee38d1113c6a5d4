#include "layerpress/runtime/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"

namespace layerpress::runtime {
namespace {

std::string errno_text() { return std::generic_category().message(errno); }

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

Journal::Journal(std::filesystem::path path, const std::vector<Json>& records) : path_(std::move(path)) {
  std::string text;
  for (const Json& record : records) text += record.dump() + "\n";
  write_text_file(path_, text);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor_ < 0) throw CheckpointError("[runtime.journal] {}: {}", path_.string(), errno_text());
}

Journal::~Journal() { ::close(descriptor_); }

void Journal::append(const Json& record) {
  const std::string line = record.dump() + "\n";
  const char* next = line.data();
  std::size_t left = line.size();
  while (left > 0) {
    const ssize_t written = ::write(descriptor_, next, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw CheckpointError("[runtime.journal] {}: {}", path_.string(), errno_text());
    next += written;
    left -= static_cast<std::size_t>(written);
  }
  if (::fdatasync(descriptor_) != 0) throw CheckpointError("[runtime.journal] {}: {}", path_.string(), errno_text());
}

}  // namespace layerpress::runtime
