#include "layerpress/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "layerpress/base/error.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;

std::string errno_text() { return std::generic_category().message(errno); }

std::uint64_t page_size() {
  static const auto size = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

/// Closes a descriptor at the end of a scope.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

void sync_directory(const fs::path& path) {
  Descriptor descriptor{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (descriptor.value >= 0) ::fsync(descriptor.value);
}

}  // namespace

MappedFile::MappedFile(fs::path path, const std::byte* data, std::uint64_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

std::shared_ptr<const MappedFile> MappedFile::open(const fs::path& path) {
  Descriptor descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (descriptor.value < 0) throw CheckpointError("[file.open] {}: {}", path.string(), errno_text());
  struct stat status {};
  if (::fstat(descriptor.value, &status) != 0) throw CheckpointError("[file.open] {}: {}", path.string(), errno_text());
  if (!S_ISREG(status.st_mode)) throw CheckpointError("[file.open] {}: not a regular file", path.string());
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::byte* data = nullptr;
  if (size > 0) {
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.value, 0);
    if (address == MAP_FAILED)
      throw CheckpointError("[file.open] {}: cannot map {} bytes: {}", path.string(), size, errno_text());
    data = static_cast<const std::byte*>(address);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, data, size));
}

void MappedFile::will_need(std::uint64_t offset, std::uint64_t length) const {
  if (data_ == nullptr || offset >= size_) return;
  const std::uint64_t begin = offset / page_size() * page_size();
  const std::uint64_t end = std::min(size_, offset + length);
  // Advice only: a failure costs time, never correctness.
  (void)::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_WILLNEED);
}

void MappedFile::release(std::uint64_t offset, std::uint64_t length) const {
  if (data_ == nullptr || offset >= size_) return;
  const std::uint64_t begin = (offset + page_size() - 1) / page_size() * page_size();
  const std::uint64_t end = std::min(size_, offset + length) / page_size() * page_size();
  if (begin < end) (void)::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

OutputFile::OutputFile(fs::path path, std::uint64_t size) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw CheckpointError("[file.create] {}: {}", path_.string(), errno_text());
  if (size == 0) return;
  int result = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(size));
  if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
    result = ::ftruncate(descriptor_, static_cast<off_t>(size));
  if (result != 0) {
    const std::string reason = errno_text();
    ::close(descriptor_);
    ::unlink(path_.c_str());
    throw CheckpointError("[file.create] {}: cannot reserve {} bytes: {}; free some space or choose another --output",
                          path_.string(), size, reason);
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write_at(std::uint64_t offset, const void* bytes, std::uint64_t length) {
  const char* next = static_cast<const char*>(bytes);
  while (length > 0) {
    const ssize_t written = ::pwrite(descriptor_, next, length, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw CheckpointError("[file.write] {}: {}", path_.string(), errno_text());
    next += written;
    offset += static_cast<std::uint64_t>(written);
    length -= static_cast<std::uint64_t>(written);
  }
}

void OutputFile::flush_range(std::uint64_t offset, std::uint64_t length) {
  (void)::sync_file_range(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(length), SYNC_FILE_RANGE_WRITE);
}

void OutputFile::sync_and_close() {
  if (descriptor_ < 0) return;
  const int synced = ::fsync(descriptor_);
  const std::string reason = synced == 0 ? "" : errno_text();
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (synced != 0 || closed != 0)
    throw CheckpointError("[file.write] {}: {}", path_.string(), synced != 0 ? reason : errno_text());
}

std::string read_text_file(const fs::path& path, std::uint64_t limit) {
  const auto file = MappedFile::open(path);
  if (file->size() > limit)
    throw CheckpointError("[file.read] {}: {} bytes, more than the {} allowed", path.string(), file->size(), limit);
  return std::string(reinterpret_cast<const char*>(file->data()), file->size());
}

void write_text_file(const fs::path& path, std::string_view text) {
  const fs::path temporary = path.string() + fmt::format(".tmp.{}", ::getpid());
  std::error_code ignored;
  fs::remove(temporary, ignored);
  try {
    OutputFile file(temporary, 0);
    file.write_at(0, text.data(), text.size());
    file.sync_and_close();
  } catch (...) {
    fs::remove(temporary, ignored);
    throw;
  }
  std::error_code failure;
  fs::rename(temporary, path, failure);
  if (failure) {
    fs::remove(temporary, ignored);
    throw CheckpointError("[file.write] {}: {}", path.string(), failure.message());
  }
}

PendingDirectory::PendingDirectory(const fs::path& target, bool overwrite) {
  std::error_code failure;
  target_ = fs::absolute(target, failure).lexically_normal();
  if (target_.filename().empty()) target_ = target_.parent_path();
  const auto status = fs::status(target_, failure);
  if (fs::exists(status)) {
    if (!fs::is_directory(status))
      throw UsageError("[output] {}: exists and is no directory; choose another --output", target_.string());
    if (!fs::is_empty(target_, failure) && !overwrite)
      throw UsageError("[output] {}: the directory is not empty; choose another --output or pass --overwrite",
                       target_.string());
  }
  for (fs::path parent = target_.parent_path(); !parent.empty() && !fs::exists(parent); parent = parent.parent_path())
    made_parent_ = parent;
  fs::create_directories(target_.parent_path(), failure);
  pending_ = target_.parent_path() / fmt::format(".{}.unfinished.{}", target_.filename().string(), ::getpid());
  fs::remove_all(pending_, failure);
  if (!fs::create_directory(pending_, failure) || failure)
    throw CheckpointError("[output] {}: cannot create the directory: {}", pending_.string(), failure.message());
}

PendingDirectory::~PendingDirectory() {
  std::error_code ignored;
  if (committed_) return;
  fs::remove_all(pending_, ignored);
  // Folders made on the way go, too, as long as nobody else has put anything into them.
  for (fs::path parent = target_.parent_path(); !made_parent_.empty() && fs::is_empty(parent, ignored) && !ignored;
       parent = parent.parent_path()) {
    fs::remove(parent, ignored);
    if (parent == made_parent_) break;
  }
}

void PendingDirectory::commit() {
  std::error_code failure;
  sync_directory(pending_);
  fs::path old;
  if (fs::exists(target_)) {
    // An existing target is moved aside first, so that there is a complete folder at every moment.
    old = pending_.string() + ".old";
    fs::rename(target_, old, failure);
    if (failure) throw CheckpointError("[output] {}: cannot be replaced: {}", target_.string(), failure.message());
  }
  fs::rename(pending_, target_, failure);
  if (failure) {
    const std::string reason = failure.message();
    if (!old.empty()) fs::rename(old, target_, failure);
    throw CheckpointError("[output] {}: cannot be put in place: {}", target_.string(), reason);
  }
  committed_ = true;
  sync_directory(target_.parent_path());
  if (!old.empty()) fs::remove_all(old, failure);
}

}  // namespace layerpress
