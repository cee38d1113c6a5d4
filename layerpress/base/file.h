#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace layerpress {

/// A read-only memory map of a whole file. Thread-safe after construction. An empty file maps to an empty span.
/// A page that cannot be read (the file was truncated, the disk fails) raises SIGBUS when touched; fetch() throws instead.
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
  /// Reads [offset, offset + length) into memory and returns when it is there. Throws CheckpointError when the file no
  /// longer holds the range (truncated while mapped) or cannot be read.
  void fetch(std::uint64_t offset, std::uint64_t length) const;
  /// Drops the resident pages that lie wholly inside [offset, offset + length); a later read maps them again.
  void release(std::uint64_t offset, std::uint64_t length) const;

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, std::uint64_t size);
  /// Throws CheckpointError when the file, looked at by its path, has become shorter than `end`.
  void check_reaches(std::uint64_t end) const;
  std::filesystem::path path_;
  const std::byte* data_;
  std::uint64_t size_;
  std::uint64_t device_ = 0;  // with inode_: whether the path still means the file that is mapped
  std::uint64_t inode_ = 0;
  int region_;  // place in the table that mapped_file_at searches
};

/// The path of the MappedFile or ScratchFile that is mapped around `address` at this moment, or null (also when some
/// thousand files are mapped at once; of a very long path its end). Async-signal-safe: a SIGBUS handler uses it to say
/// which file was truncated or could not be read.
const char* mapped_file_at(const void* address) noexcept;

/// A file that is written at given offsets. Every failure (disk full, I/O error) is a CheckpointError naming the path.
/// write_at may be called from several threads for disjoint ranges.
class OutputFile {
 public:
  enum class Mode {
    kCreate,  ///< the file must not exist; `size` bytes are reserved on the disk, so that a full disk shows at once
    kReopen   ///< the file must exist and have `size` bytes
  };
  OutputFile(std::filesystem::path path, std::uint64_t size, Mode mode = Mode::kCreate);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write_at(std::uint64_t offset, const void* bytes, std::uint64_t length);
  /// Reads back; a file that ends early is an error.
  void read_at(std::uint64_t offset, void* bytes, std::uint64_t length) const;
  /// Starts writing the range back to disk and lets its pages go, so that dirty pages do not pile up.
  void flush_range(std::uint64_t offset, std::uint64_t length);
  /// Waits until what was written so far is on disk.
  void sync();
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

/// Waits until the names in a folder are on disk: files made or renamed in it before survive a power cut.
void sync_directory(const std::filesystem::path& path);

/// A folder that is filled under a hidden name beside its target (".NAME.unfinished") and appears there only by
/// commit(). It is locked (flock) for the lifetime of the object: a second process is refused with a UsageError.
/// Left without commit() it is removed, unless keep() was called or it was continued: then a later run can go on with it.
class PendingDirectory {
 public:
  struct Options {
    bool overwrite = false;  ///< an existing non-empty target is replaced at commit(); an unfinished folder is emptied
    bool resume = false;     ///< an unfinished folder is kept as it is and filled further, with `overwrite` too
    /// The file that makes an unfinished folder worth keeping; without it the folder counts as rubbish and is emptied.
    std::string marker;
  };
  /// REQUIRES: the parent of `target` exists or can be made. UsageError for: an existing non-empty `target` without
  /// `overwrite`; an unfinished folder with the marker without `overwrite` or `resume`; a folder that another run holds.
  PendingDirectory(const std::filesystem::path& target, const Options& options);
  ~PendingDirectory();
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  /// The unfinished folder of `target`, whether it exists or not.
  static std::filesystem::path pending_path(const std::filesystem::path& target);

  const std::filesystem::path& path() const { return pending_; }
  /// Whether the folder held a marker from an earlier run (only with Options::resume).
  bool continued() const { return continued_; }
  /// From now on the folder stays when the object goes without commit().
  void keep() { keep_ = true; }
  /// Syncs the folder and puts it in the target's place; an existing target is exchanged atomically where the file
  /// system can, and removed afterwards.
  void commit();

 private:
  explicit PendingDirectory(const std::filesystem::path& target);
  void make_parents();
  void take_over(const Options& options);
  void replace_target();
  void release_lock();
  std::filesystem::path target_;
  std::filesystem::path pending_;
  std::filesystem::path made_parent_;  // the outermost parent folder that had to be made, or empty
  int lock_ = -1;                      // descriptor of the folder, flock'ed
  bool overwrite_ = false;
  bool continued_ = false;
  bool keep_ = false;
  bool committed_ = false;
};

}  // namespace layerpress
