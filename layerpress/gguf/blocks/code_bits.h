#pragma once

#include <c10/util/Half.h>

#include <cstdint>
#include <cstring>

namespace layerpress::gguf {

inline void store_half(c10::Half value, std::uint8_t* bytes) { std::memcpy(bytes, &value.x, sizeof value.x); }

inline c10::Half load_half(const std::uint8_t* bytes) {
  c10::Half value;
  std::memcpy(&value.x, bytes, sizeof value.x);
  return value;
}

// How ggml lays out the bits of codes. The functions that pack overwrite the bytes; those that unpack add to the codes, which begin
// as 0.

/// Four bits of each code: of 2 * distance codes, the first half is in the low and the second half in the high nibbles.
inline void pack_nibbles(const std::uint8_t* codes, int count, int distance, std::uint8_t* bytes) {
  for (int first = 0; first < count; first += 2 * distance, bytes += distance)
    for (int j = 0; j < distance; ++j)
      bytes[j] = static_cast<std::uint8_t>((codes[first + j] & 15) | codes[first + j + distance] << 4);
}

inline void unpack_nibbles(const std::uint8_t* bytes, int count, int distance, std::uint8_t* codes) {
  for (int first = 0; first < count; first += 2 * distance, bytes += distance)
    for (int j = 0; j < distance; ++j) {
      codes[first + j] = static_cast<std::uint8_t>(codes[first + j] | (bytes[j] & 15));
      codes[first + j + distance] = static_cast<std::uint8_t>(codes[first + j + distance] | bytes[j] >> 4);
    }
}

/// Two bits of each of 256 codes, from bit `shift` on: a byte has codes that are 32 apart, of 128.
inline void pack_pairs(const std::uint8_t* codes, int shift, std::uint8_t* bytes) {
  for (int first = 0; first < 256; first += 128, bytes += 32)
    for (int j = 0; j < 32; ++j) {
      unsigned byte = 0;
      for (int part = 0; part < 4; ++part) byte |= (codes[first + 32 * part + j] >> shift & 3u) << (2 * part);
      bytes[j] = static_cast<std::uint8_t>(byte);
    }
}

inline void unpack_pairs(const std::uint8_t* bytes, int shift, std::uint8_t* codes) {
  for (int first = 0; first < 256; first += 128, bytes += 32)
    for (int part = 0; part < 4; ++part)
      for (int j = 0; j < 32; ++j) {
        std::uint8_t& code = codes[first + 32 * part + j];
        code = static_cast<std::uint8_t>(code | (bytes[j] >> (2 * part) & 3) << shift);
      }
}

/// Bit `shift` of each of 256 codes: a byte has codes that are 32 apart.
inline void pack_bits(const std::uint8_t* codes, int shift, std::uint8_t* bytes) {
  for (int j = 0; j < 32; ++j) {
    unsigned byte = 0;
    for (int part = 0; part < 8; ++part) byte |= (codes[32 * part + j] >> shift & 1u) << part;
    bytes[j] = static_cast<std::uint8_t>(byte);
  }
}

inline void unpack_bits(const std::uint8_t* bytes, int shift, std::uint8_t* codes) {
  for (int part = 0; part < 8; ++part)
    for (int j = 0; j < 32; ++j) {
      std::uint8_t& code = codes[32 * part + j];
      code = static_cast<std::uint8_t>(code | (bytes[j] >> part & 1) << shift);
    }
}

/// Bit 4 of each of 32 codes: a byte has eight consecutive codes.
inline void pack_fifth_bits(const std::uint8_t* codes, std::uint8_t* bytes) {
  for (int byte = 0; byte < 4; ++byte) {
    unsigned bits = 0;
    for (int j = 0; j < 8; ++j) bits |= (codes[8 * byte + j] >> 4 & 1u) << j;
    bytes[byte] = static_cast<std::uint8_t>(bits);
  }
}

inline void unpack_fifth_bits(const std::uint8_t* bytes, std::uint8_t* codes) {
  for (int j = 0; j < 32; ++j) codes[j] = static_cast<std::uint8_t>(codes[j] | (bytes[j / 8] >> (j % 8) & 1) << 4);
}

}  // namespace layerpress::gguf
