#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/files/descriptor.h"

namespace layerpress {
namespace {

namespace fs = std::filesystem;

fs::path normalized(const fs::path& target) {
  std::error_code failure;
  const fs::path path = fs::absolute(target, failure).lexically_normal();
  return path.filename().empty() ? path.parent_path() : path;
}

void check_file(const fs::path& target, const fs::file_status& status, bool overwrite) {
  if (!fs::is_regular_file(status))
    throw UsageError("[output] {}: exists and is not a file; choose another --output", target.string());
  if (!overwrite)
    throw UsageError("[output] {}: the file exists; choose another --output or pass --overwrite", target.string());
}

/// A finished folder takes the place of an empty one by a new name, which works within a file system only, and not over the root of a mount, even of
/// the same file system. Kernels before 5.8 do not say which folder is one.
bool is_mount_point(const fs::path& target) {
#ifdef STATX_ATTR_MOUNT_ROOT
  struct statx said {};
  if (::statx(AT_FDCWD, target.c_str(), 0, STATX_TYPE, &said) == 0 &&
      (said.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0)
    return true;
#endif
  struct stat own {
  }, parent{};
  return ::stat(target.c_str(), &own) == 0 && ::stat(target.parent_path().c_str(), &parent) == 0 &&
         own.st_dev != parent.st_dev;
}

void check_target(const fs::path& target, bool overwrite, bool is_file) {
  std::error_code failure;
  if (fs::is_symlink(fs::symlink_status(target, failure)))
    throw UsageError("[output] {}: is a link, which the result would replace; name what it leads to, {}",
                     target.string(), fs::read_symlink(target, failure).string());
  const auto status = fs::status(target, failure);
  if (!fs::exists(status)) return;
  if (is_mount_point(target))
    throw UsageError("[output] {}: is a mount point, which no finished folder can replace; name a folder in it",
                     target.string());
  if (is_file) return check_file(target, status, overwrite);
  if (!fs::is_directory(status))
    throw UsageError("[output] {}: exists and is not a directory; choose another --output", target.string());
  if (!fs::is_empty(target, failure) && !overwrite)
    throw UsageError("[output] {}: the directory is not empty; choose another --output or pass --overwrite",
                     target.string());
  if (::access(target.c_str(), W_OK | X_OK) != 0)  // its files could not be removed
    throw IoError("[output] {}: cannot be replaced: {}; choose another --output", target.string(), errno_text());
}

bool lock(int descriptor) {
  int result;
  do {
    result = ::flock(descriptor, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

/// The lock of a target that is to be replaced. The run that has just published it may still hold it for a moment.
void lock_replaced(int descriptor, const fs::path& target) {
  constexpr auto kPatience = std::chrono::seconds(30);
  const auto start = std::chrono::steady_clock::now();
  while (!lock(descriptor)) {
    if (errno != EWOULDBLOCK) return;  // no locks on this file system; the target came from elsewhere
    if (std::chrono::steady_clock::now() - start > kPatience)
      throw IoError("[output] {}: cannot be replaced: another process has locked it; end that one and continue with {}",
                    target.string(), "--resume");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Whether `path` still names what `descriptor` was opened on.
bool is_at(int descriptor, const fs::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

/// Creates the folder if necessary, locks it and returns its descriptor, which holds the lock until it is closed.
int lock_folder(const fs::path& folder, const fs::path& target) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST)
      throw IoError("[output] {}: cannot create the directory: {}; choose another --output", folder.string(),
                    errno_text());
    Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (descriptor.value() < 0 && errno == ENOENT) continue;
    if (descriptor.value() < 0)
      throw IoError("[output] {}: cannot be opened: {}; remove it or choose another --output", folder.string(),
                    errno_text());
    const bool locked = lock(descriptor.value());
    if (!locked && errno == EWOULDBLOCK)
      throw UsageError("[output] {}: another run is writing it; wait for it or choose another --output",
                       target.string());
    if (!locked)
      throw IoError("[output] {}: cannot be locked: {}; choose an --output on another file system", folder.string(),
                    errno_text());
    // The previous holder of the lock may have renamed or removed the folder before we got the lock, which is then
    // void.
    if (is_at(descriptor.value(), folder)) return descriptor.release();
  }
  throw IoError("[output] {}: other runs keep creating and removing it; choose another --output", folder.string());
}

/// Removes the marker first, so that no run resumes from a half-emptied folder.
void empty_folder(const fs::path& folder, const std::string& marker) {
  std::error_code failure;
  if (!marker.empty()) fs::remove(folder / marker, failure);
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder, failure)) entries.push_back(entry.path());
  for (const fs::path& entry : entries) {
    if (!failure) fs::remove_all(entry, failure);
  }
  if (failure) throw IoError("[output] {}: cannot be emptied: {}", folder.string(), failure.message());
}

}  // namespace

fs::path PendingDirectory::pending_path(const fs::path& target) {
  const fs::path path = normalized(target);
  return path.parent_path() / fmt::format(".{}.unfinished", path.filename().string());
}

void PendingDirectory::require_free(const fs::path& target, bool is_file) {
  check_target(normalized(target), /*overwrite=*/false, is_file);
}

PendingDirectory::PendingDirectory(const fs::path& target)
    : target_(normalized(target)), pending_(pending_path(target)) {}

// The constructor below delegates to a complete object, so that the destructor cleans up when it throws.
PendingDirectory::PendingDirectory(const fs::path& target, const Options& options) : PendingDirectory(target) {
  overwrite_ = options.overwrite;
  only_file_ = options.only_file;
  check_target(target_, overwrite_, !only_file_.empty());
  make_parents();
  lock_ = lock_folder(pending_, target_);
  take_over(options);
  sync_directory(target_.parent_path());
}

void PendingDirectory::make_parents() {
  std::error_code failure;
  for (fs::path parent = target_.parent_path(); !parent.empty() && !fs::exists(parent, failure);
       parent = parent.parent_path())
    made_parent_ = parent;
  fs::create_directories(target_.parent_path(), failure);
}

void PendingDirectory::take_over(const Options& options) {
  std::error_code failure;
  const bool unfinished = !options.marker.empty() && fs::exists(pending_ / options.marker, failure);
  keep_ = unfinished;
  check_target(target_, overwrite_, !only_file_.empty());  // again: the run that held the lock may have finished since
  if (unfinished && !options.resume && !options.overwrite)
    throw UsageError("[output] {}: an earlier run did not finish; continue it with --resume or start over with {}",
                     target_.string(), "--overwrite");
  continued_ = unfinished && options.resume;
  keep_ = continued_;
  if (!continued_) empty_folder(pending_, options.marker);
}

PendingDirectory::~PendingDirectory() {
  std::error_code ignored;
  if (lock_ >= 0 && !committed_ && !keep_) fs::remove_all(pending_, ignored);
  // Also removes created parent folders that are still empty.
  for (fs::path parent = target_.parent_path();
       !committed_ && !made_parent_.empty() && fs::is_empty(parent, ignored) && !ignored;
       parent = parent.parent_path()) {
    fs::remove(parent, ignored);
    if (parent == made_parent_) break;
  }
  release_lock();
}

void PendingDirectory::release_lock() {
  if (lock_ >= 0) ::close(lock_);
  lock_ = -1;
}

void PendingDirectory::commit_file() {
  std::error_code failure;
  if (!overwrite_ && fs::exists(target_, failure))
    throw UsageError("[output] {}: another run has made the file meanwhile; pass --overwrite", target_.string());
  fs::rename(pending_ / only_file_, target_, failure);
  if (failure) throw IoError("[output] {}: cannot be put in place: {}", target_.string(), failure.message());
  committed_ = true;
  fs::remove_all(pending_, failure);
  release_lock();
  sync_directory(target_.parent_path());
}

void PendingDirectory::commit() {
  sync_directory(pending_);
  if (!only_file_.empty()) return commit_file();
  std::error_code failure;
  if (overwrite_ && fs::exists(target_, failure)) {
    replace_target();
    return;
  }
  // Fails if a non-empty target was created in the meantime.
  fs::rename(pending_, target_, failure);
  if (failure) throw IoError("[output] {}: cannot be put in place: {}", target_.string(), failure.message());
  committed_ = true;
  release_lock();
  sync_directory(target_.parent_path());
}

void PendingDirectory::replace_target() {
  std::error_code failure;
  // The old target briefly has the unfinished folder's name. It is locked, so it is not mistaken for an unfinished
  // folder.
  const Descriptor old_folder(::open(target_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (old_folder.value() >= 0) lock_replaced(old_folder.value(), target_);
  fs::path old = pending_;
  if (::renameat2(AT_FDCWD, pending_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS)
      throw IoError("[output] {}: cannot be replaced: {}", target_.string(), errno_text());
    // The file system cannot exchange: move the old target aside, so that a complete folder exists at every moment.
    old += ".old";
    fs::remove_all(old, failure);
    fs::rename(target_, old, failure);
    if (failure) throw IoError("[output] {}: cannot be replaced: {}", target_.string(), failure.message());
    fs::rename(pending_, target_, failure);
    if (failure) {
      const std::string reason = failure.message();
      fs::rename(old, target_, failure);
      throw IoError("[output] {}: cannot be put in place: {}", target_.string(), reason);
    }
  }
  committed_ = true;
  release_lock();                         // before freeing the unfinished name: its next holder may replace this target
  sync_directory(target_.parent_path());  // if this fails, the old result stays beside the new one
  fs::remove_all(old, failure);
}

}  // namespace layerpress
