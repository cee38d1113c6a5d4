#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace layerpress {

/// XXH3 checksum (64 bits) of bytes given in pieces. Detects damage; does not protect against tampering.
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
