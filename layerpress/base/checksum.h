#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace layerpress {

/// XXH3 (64 bits) over pieces given one after the other. Finds damage; no protection against intent.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  void add(const void* bytes, std::size_t length);
  /// 16 hexadecimal digits of everything added so far.
  std::string text() const;

 private:
  void* state_;
};

std::string checksum_of(const void* bytes, std::size_t length);

}  // namespace layerpress
