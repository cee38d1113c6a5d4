#include "layerpress/base/files/scratch_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/files/descriptor.h"
#include "layerpress/base/files/mapped_regions.h"

namespace layerpress {
namespace {

constexpr std::uint64_t kGrowth = 64u << 20;
constexpr std::uint64_t kWritePiece = 8u << 20;
constexpr std::uint64_t kWorthFlushing = 1u << 20;
constexpr std::uint64_t kLargestLength = 1ull << 62;

std::uint64_t whole_pages(std::uint64_t length) { return (length + page_size() - 1) / page_size() * page_size(); }

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  const std::string reason = errno_text();
  throw MemoryError("[scratch] {}: {}: {}; free some space or choose another --offload-dir", path.string(), what,
                    reason);
}

/// Whether this process may make files of `size` bytes. Checked first, because exceeding the limit raises SIGXFSZ.
bool file_size_allowed(std::uint64_t size) {
  struct rlimit limit {};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || size <= limit.rlim_cur;
}

/// Extends the file by at least `needed` bytes, by more if there is room. Returns the number of bytes, 0 on failure.
std::uint64_t extend(int descriptor, std::uint64_t end, std::uint64_t needed) {
  for (const std::uint64_t growth : {std::max(needed, kGrowth), needed}) {
    errno = EFBIG;
    if (!file_size_allowed(end + growth)) continue;
    if (reserve_space(descriptor, end, growth)) return growth;
    const int reason = errno;
    (void)!::ftruncate(descriptor, static_cast<off_t>(end));  // returns space reserved before the disk was full
    errno = reason;
  }
  return 0;
}

}  // namespace

ScratchFile::ScratchFile(std::filesystem::path path, bool keep)
    : path_(std::move(path)),
      descriptor_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (keep ? 0 : O_TRUNC), 0600)) {
  struct stat status {};
  if (descriptor_.value() < 0 || ::fstat(descriptor_.value(), &status) != 0) fail(path_, "cannot be opened");
  if (!S_ISREG(status.st_mode))
    throw MemoryError("[scratch] {}: not a regular file; choose another --offload-dir", path_.string());
  end_ = static_cast<std::uint64_t>(status.st_size) / page_size() * page_size();
  if (end_ > 0) holes_[0] = end_;
}

ScratchFile::Extent ScratchFile::allocate(std::uint64_t length) {
  if (length == 0) return {};
  if (length > kLargestLength) throw InternalError("[scratch] {}: an extent of {} bytes", path_.string(), length);
  const std::uint64_t needed = whole_pages(length);
  auto hole = std::find_if(holes_.begin(), holes_.end(), [&](const auto& entry) { return entry.second >= needed; });
  if (hole == holes_.end()) {
    hole = holes_.empty() ? holes_.end() : std::prev(holes_.end());
    const bool at_end = hole != holes_.end() && hole->first + hole->second == end_;
    const std::uint64_t growth = extend(descriptor_.value(), end_, needed - (at_end ? hole->second : 0));
    if (growth == 0) fail(path_, fmt::format("cannot reserve {} bytes", length));
    if (!at_end) hole = holes_.emplace(end_, 0).first;
    hole->second += growth;
    end_ += growth;
  }
  const Extent extent{hole->first, length};
  if (!claim(extent)) throw InternalError("[scratch] {}: no room at byte {}", path_.string(), extent.offset);
  return extent;
}

bool ScratchFile::claim(const Extent& extent) {
  if (extent.length == 0) return true;
  const auto after = holes_.upper_bound(extent.offset);
  if (extent.offset % page_size() != 0 || extent.length > kLargestLength || after == holes_.begin()) return false;
  const auto hole = std::prev(after);
  const auto [begin, size] = *hole;
  const std::uint64_t skipped = extent.offset - begin, taken = whole_pages(extent.length);
  if (skipped >= size || taken > size - skipped) return false;
  holes_.erase(hole);
  if (skipped > 0) holes_[begin] = skipped;
  if (skipped + taken < size) holes_[extent.offset + taken] = size - skipped - taken;
  return true;
}

void ScratchFile::free(const Extent& extent) {
  if (extent.length == 0) return;
  std::uint64_t begin = extent.offset, size = whole_pages(extent.length);
  auto next = holes_.lower_bound(begin);
  auto before = next == holes_.begin() ? holes_.end() : std::prev(next);
  const bool overlaps = (before != holes_.end() && before->first + before->second > begin) ||
                        (next != holes_.end() && next->first < begin + size) || begin + size > end_;
  if (overlaps) throw InternalError("[scratch] {}: the extent at byte {} is not allocated", path_.string(), begin);
  if (next != holes_.end() && next->first == begin + size) {
    size += next->second;
    holes_.erase(next);
  }
  if (before != holes_.end() && before->first + before->second == begin)
    before->second += size;
  else
    holes_[begin] = size;
}

void ScratchFile::write(const Extent& extent, const void* bytes) {
  for (std::uint64_t done = 0; done < extent.length; done += kWritePiece) {
    const std::uint64_t piece = std::min(kWritePiece, extent.length - done);
    const std::uint64_t offset = extent.offset + done;
    if (!write_fully(descriptor_.value(), offset, static_cast<const std::byte*>(bytes) + done, piece))
      fail(path_, "cannot be written");
    // Start writing back now: the disk works during the computation, and dirty pages do not accumulate.
    if (extent.length >= kWorthFlushing)
      (void)::sync_file_range(descriptor_.value(), static_cast<off_t>(offset), static_cast<off_t>(piece),
                              SYNC_FILE_RANGE_WRITE);
  }
}

void ScratchFile::read_ahead(const Extent& extent) const {
  for (std::uint64_t done = 0; done < extent.length; done += kReadAheadWindow)
    (void)::posix_fadvise(descriptor_.value(), static_cast<off_t>(extent.offset + done),
                          static_cast<off_t>(std::min(kReadAheadWindow, extent.length - done)), POSIX_FADV_WILLNEED);
}

std::shared_ptr<const std::byte> ScratchFile::map(const Extent& extent) const {
  if (extent.length == 0) return nullptr;
  void* address = ::mmap(nullptr, extent.length, PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor_.value(),
                         static_cast<off_t>(extent.offset));
  if (address == MAP_FAILED) fail(path_, fmt::format("cannot map {} bytes", extent.length));
  const auto unmap = [length = extent.length,
                      region = note_mapped_region(address, extent.length, path_.string())](const std::byte* bytes) {
    forget_mapped_region(region);
    ::munmap(const_cast<std::byte*>(bytes), length);
  };
  return {static_cast<const std::byte*>(address), unmap};
}

}  // namespace layerpress
