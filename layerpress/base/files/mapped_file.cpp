#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/files/descriptor.h"
#include "layerpress/base/files/mapped_regions.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;

// Small enough to answer a signal soon, large enough to keep the disk busy.
constexpr std::uint64_t kFetchPiece = 8u << 20;

/// Loads the pages without touching them, so that an unreadable page gives an error number instead of SIGBUS. Returns
/// 0, EINVAL if the kernel does not support this (before Linux 5.14), or the error number.
int populate(const std::byte* begin, std::uint64_t length) {
#ifdef MADV_POPULATE_READ
  while (::madvise(const_cast<std::byte*>(begin), length, MADV_POPULATE_READ) != 0)
    if (errno != EINTR && errno != EAGAIN) return errno;
  return 0;
#else
  (void)begin, (void)length;
  return EINVAL;
#endif
}

void touch(const std::byte* begin, std::uint64_t length) {
  for (std::uint64_t offset = 0; offset < length; offset += page_size())
    (void)*const_cast<const volatile std::byte*>(begin + offset);
}

}  // namespace

MappedFile::MappedFile(fs::path path, const std::byte* data, std::uint64_t size)
    : path_(std::move(path)), data_(data), size_(size), region_(note_mapped_region(data, size, path_.string())) {}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapped_region(region_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

std::shared_ptr<const MappedFile> MappedFile::open(const fs::path& path) {
  // Does not wait for the writer of a pipe, which is then refused.
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.value() < 0) throw IoError("[file.open] {}: {}", path.string(), errno_text());
  struct stat status {};
  if (::fstat(descriptor.value(), &status) != 0) throw IoError("[file.open] {}: {}", path.string(), errno_text());
  if (!S_ISREG(status.st_mode)) throw IoError("[file.open] {}: not a regular file", path.string());
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::byte* data = nullptr;
  if (size > 0) {
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.value(), 0);
    if (address == MAP_FAILED)
      throw IoError("[file.open] {}: cannot map {} bytes: {}", path.string(), size, errno_text());
    data = static_cast<const std::byte*>(address);
  }
  const std::shared_ptr<MappedFile> opened(new MappedFile(path, data, size));
  opened->device_ = status.st_dev;
  opened->inode_ = status.st_ino;
  return opened;
}

void MappedFile::will_need(std::uint64_t offset, std::uint64_t length) const {
  if (data_ == nullptr || offset >= size_) return;
  const std::uint64_t end = offset + std::min(length, size_ - offset);
  // Only a hint: a failure costs time, never correctness.
  for (std::uint64_t begin = offset / page_size() * page_size(); begin < end; begin += kReadAheadWindow)
    (void)::madvise(const_cast<std::byte*>(data_) + begin, std::min(kReadAheadWindow, end - begin), MADV_WILLNEED);
}

void MappedFile::check_reaches(std::uint64_t end) const {
  struct stat now {};
  // If the path was removed or now names another file, the mapped file still exists but its size cannot be queried by
  // path.
  if (::stat(path_.c_str(), &now) != 0 || now.st_dev != device_ || now.st_ino != inode_) return;
  if (static_cast<std::uint64_t>(now.st_size) < end)
    throw IoError("[file.read] {}: was truncated while in use: {} bytes when opened, {} now; restore the file",
                  path_.string(), size_, now.st_size);
}

void MappedFile::fetch(std::uint64_t offset, std::uint64_t length) const {
  if (data_ == nullptr || length == 0 || offset >= size_) return;
  const std::uint64_t end = offset + std::min(length, size_ - offset);
  for (std::uint64_t begin = offset / page_size() * page_size(); begin < end; begin += kFetchPiece) {
    const std::uint64_t piece = std::min(kFetchPiece, end - begin);
    const int failure = populate(data_ + begin, piece);
    if (failure == 0) continue;
    check_reaches(begin + piece);
    if (failure != EINVAL)
      throw IoError("[file.read] {}: bytes {} to {} cannot be read ({}): the disk is failing, or the file was {}",
                    path_.string(), begin, begin + piece, std::generic_category().message(failure),
                    "truncated while in use; check both");
    touch(data_ + begin, piece);
  }
  // The file's new last page is still readable, with zeros in place of the truncated bytes.
  check_reaches(end);
}

void MappedFile::release(std::uint64_t offset, std::uint64_t length) const {
  if (data_ == nullptr || offset >= size_) return;
  const std::uint64_t begin = (offset + page_size() - 1) / page_size() * page_size();
  const std::uint64_t end = (offset + std::min(length, size_ - offset)) / page_size() * page_size();
  if (begin < end) (void)::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace layerpress
