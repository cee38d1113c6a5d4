#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>

#include "layerpress/base/files/descriptor.h"

namespace layerpress {

/// A file for data that does not fit in memory: extents are allocated, written, mapped for reading and freed. Extents
/// are page-aligned, and freed space is reused (first fit, adjacent holes merge), so the file is about as large as its
/// largest content. Writes use pwrite, so that a full disk is an error and not a signal. Not thread-safe. Failures
/// (disk full, file-size limit, I/O) throw MemoryError with the path and the advice to free space or choose another
/// --offload-dir.
class ScratchFile {
 public:
  struct Extent {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;  ///< requested bytes; the file rounds them up to pages
  };

  /// Creates `path`, which stays afterwards. With `keep`, opens the existing file; the caller then claims the extents it
  /// knows of.
  ScratchFile(std::filesystem::path path, bool keep);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  Extent allocate(std::uint64_t length);
  /// Claims an extent of an earlier run. Returns false if it lies outside the file or overlaps another extent.
  bool claim(const Extent& extent);
  void free(const Extent& extent);
  /// Writes the whole extent and starts writing it back to disk.
  void write(const Extent& extent, const void* bytes);
  /// Requests the extent's bytes before map(). This and map() may run concurrently with write() of other extents.
  void read_ahead(const Extent& extent) const;
  /// The extent's bytes, mapped read-only until the last copy of the pointer is destroyed; null for an empty extent.
  std::shared_ptr<const std::byte> map(const Extent& extent) const;

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  std::uint64_t end_ = 0;                         // size of the file
  std::map<std::uint64_t, std::uint64_t> holes_;  // free space inside it: offset to length
};

}  // namespace layerpress
