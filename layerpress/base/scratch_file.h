#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>

namespace layerpress {

/// A file for data that does not fit in memory: extents are allocated, written, mapped for reading and freed. Extents are
/// page-aligned and freed space is used again (first fit, neighbours merge), so the file is about as large as its largest
/// content. Writes go through pwrite, so that a full disk is an error and not a signal. Not thread-safe.
/// Failures (disk full, file-size limit, I/O) are MemoryErrors that name the path and say to free space or choose another
/// --offload-dir.
class ScratchFile {
 public:
  struct Extent {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;  ///< bytes asked for; the file holds them rounded up to pages
  };

  /// Creates `path`, or opens what is there when `keep` (the caller then claims extents it knows of).
  ScratchFile(std::filesystem::path path, bool keep);
  ~ScratchFile();  ///< closes; the file stays
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  Extent allocate(std::uint64_t length);
  /// Takes an extent of an earlier run. False when it lies outside the file or overlaps another.
  bool claim(const Extent& extent);
  void free(const Extent& extent);
  /// Writes the whole extent and starts bringing it to the disk.
  void write(const Extent& extent, const void* bytes);
  /// Asks for the extent's bytes ahead of map(). This and map() may run beside write() of other extents.
  void read_ahead(const Extent& extent) const;
  /// The extent's bytes, mapped read-only until the pointer's last copy goes; null for an empty extent.
  std::shared_ptr<const std::byte> map(const Extent& extent) const;
  /// Bytes of all allocated extents, and the most there ever were.
  std::uint64_t used() const { return used_; }
  std::uint64_t peak_used() const { return peak_used_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t end_ = 0;                         // size of the file
  std::map<std::uint64_t, std::uint64_t> holes_;  // free space inside it: offset to length
  std::uint64_t used_ = 0;
  std::uint64_t peak_used_ = 0;
};

}  // namespace layerpress
