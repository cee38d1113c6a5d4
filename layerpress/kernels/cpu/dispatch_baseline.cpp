#include "layerpress/kernels/cpu/table.h"

namespace layerpress::kernels::cpu {

const Table& table() { return baseline::isa_table(); }

const char* table_name() { return "baseline"; }

}  // namespace layerpress::kernels::cpu
