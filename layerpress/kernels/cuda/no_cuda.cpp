// Stands in for the device kernels where libtorch has no CUDA.
#include "layerpress/kernels/block_solver.h"

namespace layerpress::kernels {

ColumnBlockSolver column_block_solver(at::Device) { return nullptr; }

}  // namespace layerpress::kernels
