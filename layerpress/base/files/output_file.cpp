#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/files/descriptor.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;

/// Locks the file for one process (LOCK_EX) or for those of one run (LOCK_SH), so that a process believed dead cannot write beside
/// its successor.
void lock(int descriptor, const fs::path& path, int kind = LOCK_EX) {
  if (::flock(descriptor, kind | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw IoError("[file.open] {}: another process still writes it; end that one first", path.string());
}

int create(const fs::path& path, std::uint64_t size) {
  Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (descriptor.value() < 0) throw IoError("[file.create] {}: {}", path.string(), errno_text());
  lock(descriptor.value(), path);
  if (!reserve_space(descriptor.value(), 0, size)) {
    const std::string reason = errno_text();
    ::unlink(path.c_str());
    throw IoError("[file.create] {}: cannot reserve {} bytes: {}; free some space or choose another --output",
                  path.string(), size, reason);
  }
  return descriptor.release();
}

int reopen(const fs::path& path, std::uint64_t size, int kind) {
  Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (descriptor.value() < 0 || ::fstat(descriptor.value(), &status) != 0)
    throw IoError("[file.open] {}: {}", path.string(), errno_text());
  if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != size)
    throw IoError("[file.open] {}: has {} bytes instead of {}; remove it and start again", path.string(),
                  status.st_size, size);
  lock(descriptor.value(), path, kind);
  return descriptor.release();
}

/// Devices and pipes take text as they are. A file that is renamed to their name would replace them.
void write_into(const fs::path& path, std::string_view text) {
  const Descriptor descriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (descriptor.value() < 0) throw IoError("[file.write] {}: {}", path.string(), errno_text());
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor.value(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw IoError("[file.write] {}: {}", path.string(), errno_text());
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

bool is_device_or_pipe(const fs::path& path) {
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

fs::path without_links(const fs::path& path) {
  std::error_code failure;
  const fs::path target = fs::canonical(path, failure);
  return failure ? path : target;
}

}  // namespace

OutputFile::OutputFile(fs::path path, std::uint64_t size, Mode mode)
    : path_(std::move(path)),
      descriptor_(mode == Mode::kCreate ? create(path_, size)
                                        : reopen(path_, size, mode == Mode::kJoin ? LOCK_SH : LOCK_EX)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::share() { lock(descriptor_, path_, LOCK_SH); }

void OutputFile::write_at(std::uint64_t offset, const void* bytes, std::uint64_t length) {
  if (!write_fully(descriptor_, offset, bytes, length))
    throw IoError("[file.write] {}: {}", path_.string(), errno_text());
}

void OutputFile::read_at(std::uint64_t offset, void* bytes, std::uint64_t length) const {
  if (read_fully(descriptor_, offset, bytes, length)) return;
  if (errno != 0) throw IoError("[file.read] {}: {}", path_.string(), errno_text());
  throw IoError("[file.read] {}: ends before byte {}", path_.string(), offset + length);
}

void OutputFile::flush_range(std::uint64_t offset, std::uint64_t length) {
  (void)::sync_file_range(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(length), SYNC_FILE_RANGE_WRITE);
}

void OutputFile::sync() {
  if (::fdatasync(descriptor_) != 0) throw IoError("[file.write] {}: {}", path_.string(), errno_text());
}

void OutputFile::sync_and_close() {
  if (descriptor_ < 0) return;
  const int synced = ::fsync(descriptor_);
  const std::string reason = synced == 0 ? "" : errno_text();
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (synced != 0 || closed != 0)
    throw IoError("[file.write] {}: {}", path_.string(), synced != 0 ? reason : errno_text());
}

std::string read_text_file(const fs::path& path, std::uint64_t limit) {
  const auto file = MappedFile::open(path);
  if (file->size() > limit)
    throw IoError("[file.read] {}: {} bytes, more than the {} allowed", path.string(), file->size(), limit);
  return std::string(reinterpret_cast<const char*>(file->data()), file->size());
}

void replace_file(const fs::path& path, std::uint64_t size, const std::function<void(OutputFile&)>& write) {
  const fs::path temporary = path.string() + fmt::format(".tmp.{}", ::getpid());
  std::error_code failure;
  fs::remove(temporary, failure);
  try {
    OutputFile file(temporary, size);
    write(file);
    file.sync_and_close();
    fs::rename(temporary, path, failure);
    if (failure) throw IoError("[file.write] {}: {}", path.string(), failure.message());
  } catch (...) {
    fs::remove(temporary, failure);
    throw;
  }
}

void write_text_file(const fs::path& path, std::string_view text) {
  if (is_device_or_pipe(path)) return write_into(path, text);
  replace_file(without_links(path), 0, [&](OutputFile& file) { file.write_at(0, text.data(), text.size()); });
}

bool can_be_written(const fs::path& path) {
  if (is_device_or_pipe(path)) return ::access(path.c_str(), W_OK) == 0;
  std::error_code failure;
  const fs::path folder = fs::absolute(path, failure).parent_path();
  return !fs::is_directory(path, failure) && fs::is_directory(folder, failure) && ::access(folder.c_str(), W_OK) == 0;
}

void sync_directory(const fs::path& path) {
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.value() >= 0 && ::fsync(descriptor.value()) != 0 && errno != EINVAL && errno != EROFS)
    throw IoError("[file.sync] {}: {}; check the disk", path.string(), errno_text());
}

}  // namespace layerpress
