#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace layerpress {

/// The kernel cuts off advice to read ahead that is longer than its window, which is 128 KiB by default.
inline constexpr std::uint64_t kReadAheadWindow = 128u << 10;

/// A read-only memory map of a whole file. Thread-safe after construction. An empty file maps to an empty span.
/// Touching a page that cannot be read (truncated file, failing disk) raises SIGBUS; fetch() throws instead.
class MappedFile {
 public:
  /// Maps `path`; throws IoError if it cannot be opened or is not a regular file.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }

  /// Tells the kernel that the bytes [offset, offset + length) will be read soon.
  void will_need(std::uint64_t offset, std::uint64_t length) const;
  /// Reads [offset, offset + length) into memory and returns when it is there. Throws IoError if the file no
  /// longer contains the range (truncated while mapped) or cannot be read.
  void fetch(std::uint64_t offset, std::uint64_t length) const;
  /// Drops the resident pages that lie entirely inside [offset, offset + length); a later read maps them again.
  void release(std::uint64_t offset, std::uint64_t length) const;

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, std::uint64_t size);
  /// Throws IoError if the file, found by its path, is now shorter than `end`.
  void check_reaches(std::uint64_t end) const;
  std::filesystem::path path_;
  const std::byte* data_;
  std::uint64_t size_;
  std::uint64_t device_ = 0;  // with inode_: identifies the mapped file
  std::uint64_t inode_ = 0;
  int region_;  // entry of the table that mapped_file_at searches
};

/// The path of the MappedFile or ScratchFile currently mapped at `address`, or null. Also null if thousands of files
/// are mapped at once; a very long path is cut to its end. Async-signal-safe: a SIGBUS handler uses it to name the file
/// that was truncated or could not be read.
const char* mapped_file_at(const void* address) noexcept;

/// A file that is written at given offsets. Every failure (disk full, I/O error) throws an IoError that names
/// the path. Several threads may call write_at for disjoint ranges.
class OutputFile {
 public:
  enum class Mode {
    kCreate,  ///< the file must not exist; reserves `size` bytes, so that a full disk shows at once
    kReopen,  ///< the file must exist and have `size` bytes
    kJoin     ///< the same, and its maker has called share(): several processes write into it
  };
  OutputFile(std::filesystem::path path, std::uint64_t size, Mode mode = Mode::kCreate);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Lets other processes join. Until then, this is the only one that writes.
  void share();

  const std::filesystem::path& path() const { return path_; }
  void write_at(std::uint64_t offset, const void* bytes, std::uint64_t length);
  /// Reads back written bytes; throws if the file ends early.
  void read_at(std::uint64_t offset, void* bytes, std::uint64_t length) const;
  /// Starts writing the range to disk and drops its pages, so that dirty pages do not accumulate.
  void flush_range(std::uint64_t offset, std::uint64_t length);
  /// Waits until everything written so far is on disk.
  void sync();
  /// Waits until everything is on disk and closes the file. Reports errors of delayed writes.
  void sync_and_close();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Reads a text file of at most `limit` bytes; throws IoError otherwise.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t limit = 512u << 20);

/// Makes a file of what `write` puts into it, with `size` bytes reserved, under a temporary name in the folder of `path`. Syncs it and
/// renames it to `path`, or removes it if that fails.
void replace_file(const std::filesystem::path& path, std::uint64_t size, const std::function<void(OutputFile&)>& write);

/// Writes `text` to `path` as replace_file does. A link stays and its file is replaced; a device or a pipe is written to.
void write_text_file(const std::filesystem::path& path, std::string_view text);

/// Whether write_text_file can write to `path`: a device or a pipe that takes text, or a file in an existing, writable folder.
bool can_be_written(const std::filesystem::path& path);

/// Waits until a folder's entries are on disk, so that files created or renamed in it survive a power failure. Throws IoError if the
/// disk reports a fault; a file system that cannot do it is no fault.
void sync_directory(const std::filesystem::path& path);

/// A folder that is filled under a hidden name beside its target (".NAME.unfinished"). commit() moves it to the target.
/// It is locked (flock) for the lifetime of the object; a second process gets a UsageError. Without commit() the
/// destructor removes it, unless keep() was called or it is continued(): then a later run can resume with it.
class PendingDirectory {
 public:
  struct Options {
    bool overwrite = false;  ///< an existing non-empty target is replaced at commit(); an unfinished folder is emptied
    bool resume = false;     ///< an unfinished folder is kept and filled further, even with `overwrite`
    /// The file that makes an unfinished folder worth keeping. A folder without it is emptied.
    std::string marker;
    /// The file of the folder that commit() moves to the target, which is then a file; the rest of the folder is removed. "": the
    /// folder itself.
    std::string only_file{};
  };
  /// REQUIRES: the parent of `target` exists or can be created. Throws UsageError for an existing non-empty `target`
  /// without `overwrite`, for an unfinished folder with the marker without `overwrite` or `resume`, and for a folder
  /// locked by another run.
  PendingDirectory(const std::filesystem::path& target, const Options& options);
  ~PendingDirectory();
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  /// The unfinished folder of `target`, whether it exists or not.
  static std::filesystem::path pending_path(const std::filesystem::path& target);
  /// Throws the UsageError that the constructor throws for an existing `target` without Options::overwrite.
  static void require_free(const std::filesystem::path& target, bool is_file);

  const std::filesystem::path& path() const { return pending_; }
  /// Whether the folder contained a marker from an earlier run (only with Options::resume).
  bool continued() const { return continued_; }
  /// Keeps the folder when the object is destroyed without commit().
  void keep() { keep_ = true; }
  /// Syncs the folder and moves it to the target. An existing target is exchanged atomically if the file system can,
  /// and removed afterwards.
  void commit();

 private:
  explicit PendingDirectory(const std::filesystem::path& target);
  void make_parents();
  void take_over(const Options& options);
  void replace_target();
  void commit_file();
  void release_lock();
  std::filesystem::path target_;
  std::filesystem::path pending_;
  std::filesystem::path made_parent_;  // the outermost parent folder that was created, or empty
  int lock_ = -1;                      // descriptor of the folder, flock'ed
  std::string only_file_;
  bool overwrite_ = false;
  bool continued_ = false;
  bool keep_ = false;
  bool committed_ = false;
};

}  // namespace layerpress
