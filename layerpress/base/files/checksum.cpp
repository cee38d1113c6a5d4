#include "layerpress/base/files/checksum.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL  // header-only
#include <xxhash.h>

#include <new>

namespace layerpress {
namespace {

std::string digits(XXH64_hash_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace

Checksum::Checksum() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}

Checksum::~Checksum() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void Checksum::add(const void* bytes, std::size_t length) {
  if (length > 0) XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes, length);
}

std::string Checksum::text() const { return digits(XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_))); }

std::string checksum_of(const void* bytes, std::size_t length) { return digits(XXH3_64bits(bytes, length)); }

}  // namespace layerpress
