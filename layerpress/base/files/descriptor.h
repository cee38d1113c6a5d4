#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

namespace layerpress {

/// A file descriptor that is closed at the end of a scope.
class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    close();
    value_ = other.release();
    return *this;
  }
  int value() const { return value_; }
  void close() {
    if (value_ >= 0) ::close(value_);
    value_ = -1;
  }
  /// Hands the descriptor to the caller, who closes it.
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

/// The error message for errno.
std::string errno_text();

std::uint64_t page_size();

// The functions below return false on failure and leave the reason in errno.

bool write_fully(int descriptor, std::uint64_t offset, const void* bytes, std::uint64_t length);
/// If the file ends early, fails with errno 0.
bool read_fully(int descriptor, std::uint64_t offset, void* bytes, std::uint64_t length);
/// Extends the file to offset + length and reserves disk space for that range if the file system can.
bool reserve_space(int descriptor, std::uint64_t offset, std::uint64_t length);

}  // namespace layerpress
