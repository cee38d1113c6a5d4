#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace layerpress {

/// A read-only memory map of a whole file. Thread-safe after construction. An empty file maps to an empty span.
class MappedFile {
 public:
  /// Maps `path`; throws CheckpointError when it cannot be opened or is no regular file.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }

  /// Tells the kernel that the bytes [offset, offset + length) will be read soon.
  void will_need(std::uint64_t offset, std::uint64_t length) const;
  /// Drops the resident pages that lie wholly inside [offset, offset + length); a later read maps them again.
  void release(std::uint64_t offset, std::uint64_t length) const;

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, std::uint64_t size);
  std::filesystem::path path_;
  const std::byte* data_;
  std::uint64_t size_;
};

/// A file that is written at given offsets. Every failure (disk full, I/O error) is a CheckpointError naming the path.
/// write_at may be called from several threads for disjoint ranges.
class OutputFile {
 public:
  /// Creates `path` (which must not exist) and reserves `size` bytes on the disk, so that a full disk shows at once.
  OutputFile(std::filesystem::path path, std::uint64_t size);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write_at(std::uint64_t offset, const void* bytes, std::uint64_t length);
  /// Starts writing the range back to disk and lets its pages go, so that dirty pages do not pile up.
  void flush_range(std::uint64_t offset, std::uint64_t length);
  /// Waits until everything is on disk and closes the file. Errors of delayed writes surface here.
  void sync_and_close();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Reads a text file of at most `limit` bytes; throws CheckpointError otherwise.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t limit = 512u << 20);

/// Writes `text` to `path` under a temporary name in the same folder, syncs it and renames it into place.
void write_text_file(const std::filesystem::path& path, std::string_view text);

/// A folder that is filled under a temporary name beside its target and appears there only by commit().
/// Left without commit() it is removed, so that an interrupted run leaves nothing that looks finished.
class PendingDirectory {
 public:
  /// REQUIRES: the parent of `target` exists or can be made. An existing non-empty `target` is refused with a
  /// UsageError unless `overwrite`; it is replaced only at commit().
  PendingDirectory(const std::filesystem::path& target, bool overwrite);
  ~PendingDirectory();
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  const std::filesystem::path& path() const { return pending_; }
  void commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path pending_;
  std::filesystem::path made_parent_;  // the outermost parent folder that had to be made, or empty
  bool committed_ = false;
};

}  // namespace layerpress
