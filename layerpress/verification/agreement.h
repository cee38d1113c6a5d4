#pragma once

#include "layerpress/setup/open_model.h"
#include "layerpress/verification/findings.h"

namespace layerpress::verification {

/// What config.json says of a compressed-tensors checkpoint against the tensors that are there: modules that a group names are stored in its
/// scheme, static scales of inputs, keys and values are there, and vLLM finds the same group for each module. Says nothing of others.
void check_config(const setup::OpenedModel& model, Findings& findings);

/// What engines run as one is stored in one scheme, with one global scale: q/k/v, gate/up, the experts of a layer.
void check_fused(const setup::OpenedModel& model, Findings& findings);

/// Routers are not quantized: vLLM loads them plain.
void check_routers(const setup::OpenedModel& model, Findings& findings);

}  // namespace layerpress::verification
