// Products of bf16 with AMX. What fills no tile is left to AVX-512.
#include "layerpress/kernels/cpu/attention.h"
#include "layerpress/kernels/cpu/bf16/amx_products.h"
#include "layerpress/kernels/cpu/gram.h"
#include "layerpress/kernels/cpu/product.h"

namespace layerpress::kernels::cpu::LAYERPRESS_ISA {
namespace {

/// The operand of LDTILECFG (Intel's Software Developer's Manual, "Tile configuration").
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);

/// The registers of this thread. The instructions are written as assembly, because the compiler's intrinsics want literal numbers
/// of registers, which templates do not give.
class Tiles {
 public:
  Tiles() {
    static constexpr TileConfiguration kConfiguration;
    asm volatile("ldtilecfg %0" ::"m"(kConfiguration));
  }
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int t>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(t));
  }
  template <int t>
  static void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(t) : "memory");
  }
  template <int t>
  static void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(t) : "memory");
  }
  template <int sum, int left, int right>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(left), "i"(right));
  }
  static void transpose(const std::uint32_t* from, std::int64_t stride, std::uint32_t* to) {
    transpose_pairs(from, stride, to);
  }
};

void multiply_attention_product(const PairProduct& product) {
  multiply_attention<Tiles>(product, attention_product_pairs);
}
void multiply_product_tile(const ProductTile& tile) { multiply_product<Tiles>(tile, product_tile_pairs); }
void multiply_gram_tile(const GramTile& tile) { multiply_gram<Tiles>(tile, gram_tile_pairs); }

}  // namespace

void (*const attention_product_entry)(const PairProduct&) = multiply_attention_product;
void (*const gram_tile_entry)(const GramTile&) = multiply_gram_tile;
void (*const product_tile_entry)(const ProductTile&) = multiply_product_tile;

}  // namespace layerpress::kernels::cpu::LAYERPRESS_ISA
