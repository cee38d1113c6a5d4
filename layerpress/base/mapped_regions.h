#pragma once

#include <cstdint>
#include <string>

namespace layerpress {

/// Notes that [begin, begin + length) shows the file `path`, for mapped_file_at (base/file.h). Lock-free, thread-safe.
/// Returns the place to hand to forget_mapped_region; -1 (also fine to hand there) when the table is full or the region
/// empty: then a fault in it has no name, and nothing else changes.
int note_mapped_region(const void* begin, std::uint64_t length, const std::string& path) noexcept;

/// To be called before the region is unmapped: its addresses may belong to another file right after.
void forget_mapped_region(int place) noexcept;

}  // namespace layerpress
