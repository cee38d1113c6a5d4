#include "layerpress/base/files/descriptor.h"

#include <fcntl.h>

#include <cerrno>
#include <system_error>

namespace layerpress {

std::string errno_text() { return std::generic_category().message(errno); }

std::uint64_t page_size() {
  static const auto size = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

bool write_fully(int descriptor, std::uint64_t offset, const void* bytes, std::uint64_t length) {
  const char* next = static_cast<const char*>(bytes);
  while (length > 0) {
    const ssize_t written = ::pwrite(descriptor, next, length, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return false;
    next += written;
    offset += static_cast<std::uint64_t>(written);
    length -= static_cast<std::uint64_t>(written);
  }
  return true;
}

bool read_fully(int descriptor, std::uint64_t offset, void* bytes, std::uint64_t length) {
  char* next = static_cast<char*>(bytes);
  while (length > 0) {
    const ssize_t taken = ::pread(descriptor, next, length, static_cast<off_t>(offset));
    if (taken < 0 && errno == EINTR) continue;
    if (taken == 0) errno = 0;
    if (taken <= 0) return false;
    next += taken;
    offset += static_cast<std::uint64_t>(taken);
    length -= static_cast<std::uint64_t>(taken);
  }
  return true;
}

bool reserve_space(int descriptor, std::uint64_t offset, std::uint64_t length) {
  if (length == 0) return true;
  int result;
  do {
    result = ::fallocate(descriptor, 0, static_cast<off_t>(offset), static_cast<off_t>(length));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
    result = ::ftruncate(descriptor, static_cast<off_t>(offset + length));
  return result == 0;
}

}  // namespace layerpress
