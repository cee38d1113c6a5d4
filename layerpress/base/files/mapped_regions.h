#pragma once

#include <cstdint>
#include <string>

namespace layerpress {

/// Registers [begin, begin + length) as a mapping of the file `path`, for mapped_file_at (base/file.h). Lock-free,
/// thread-safe. Returns a table entry for forget_mapped_region, which also accepts -1. Returns -1 if the table is full
/// or the region is empty; a fault in that region then has no file name.
int note_mapped_region(const void* begin, std::uint64_t length, const std::string& path) noexcept;

/// Must be called before the region is unmapped, because its addresses may belong to another file right afterwards.
void forget_mapped_region(int place) noexcept;

}  // namespace layerpress
