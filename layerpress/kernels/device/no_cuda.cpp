// Replaces the device kernels if libtorch has no CUDA; tests link their own in its place.
#include "layerpress/kernels/cuda/column_block.h"
#include "layerpress/kernels/cuda/layer_pieces.h"
#include "layerpress/kernels/cuda/scale_search.h"

namespace layerpress::kernels::cuda {
namespace {

constexpr char kMissing[] = "this build has no kernels for devices";

}  // namespace

const char* launch_column_block(const ColumnBlockTask&, void*) { return kMissing; }
const char* launch_scale_search(const ScaleSearchTask&, void*) { return kMissing; }
const char* launch_rms_norm(const NormTask&, void*) { return kMissing; }
const char* launch_gate(const GateTask&, void*) { return kMissing; }
const char* launch_rotary(const RotaryTask&, void*) { return kMissing; }

}  // namespace layerpress::kernels::cuda
