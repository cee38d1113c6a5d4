#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu {

const Table& table() { return baseline::isa_table(); }

}  // namespace layerpress::kernels::cpu
