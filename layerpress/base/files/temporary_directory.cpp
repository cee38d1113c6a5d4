#include "layerpress/base/files/temporary_directory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <string>
#include <system_error>

#include "layerpress/base/error.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "layerpress-work-";
/// A younger folder may be one that its process has not locked yet.
constexpr std::time_t kLeastAge = 10;

/// Holds the folder's lock; -1: another process has it, or there is no such folder.
Descriptor locked(const fs::path& folder) {
  Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (descriptor.value() >= 0 && ::flock(descriptor.value(), LOCK_EX | LOCK_NB) != 0) descriptor.close();
  return descriptor;
}

bool is_own_and_old(int descriptor) {
  struct stat facts {};
  return ::fstat(descriptor, &facts) == 0 && facts.st_uid == ::geteuid() &&
         std::time(nullptr) - facts.st_mtime > kLeastAge;
}

/// Removes the folders whose processes were killed. What cannot be removed stays.
void remove_abandoned(const fs::path& parent) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    const Descriptor lock = locked(entry.path());
    if (lock.value() >= 0 && is_own_and_old(lock.value())) fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

TemporaryDirectory::TemporaryDirectory(fs::path parent) {
  std::error_code failure;
  const bool own = parent.empty();
  if (own) parent = fs::temp_directory_path(failure);
  if (failure)
    throw IoError("[file.temporary] {}: {}; set TMPDIR to a writable folder",
                  std::getenv("TMPDIR") == nullptr ? "/tmp" : std::getenv("TMPDIR"), failure.message());
  remove_abandoned(parent);
  std::string pattern = (parent / "layerpress-work-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    throw IoError("[file.temporary] {}: {}; {} a writable folder", pattern, std::generic_category().message(errno),
                  own ? "set TMPDIR to" : "name");
  path_ = pattern;
  lock_ = locked(path_);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace layerpress
