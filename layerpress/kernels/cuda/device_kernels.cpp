// The device kernels behind the functions that the rest of the program calls: on ATen's stream of the current device.
#include <c10/cuda/CUDAStream.h>

#include "layerpress/base/error.h"
#include "layerpress/kernels/block_solver.h"

namespace layerpress::kernels {
namespace {

void solve_on_device(const cuda::ColumnBlockTask& task) {
  if (const char* error = cuda::launch_column_block(task, c10::cuda::getCurrentCUDAStream().stream()))
    throw InternalError("[kernels.cuda] a block of {} columns and {} rows: {}", task.columns, task.rows, error);
}

}  // namespace

ColumnBlockSolver column_block_solver(at::Device device) { return device.is_cuda() ? solve_on_device : nullptr; }

}  // namespace layerpress::kernels
