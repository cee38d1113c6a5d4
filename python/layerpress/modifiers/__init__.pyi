# Written by scripts/python_stubs.py from the tables of the C++ library.

from typing import Any

class AWQMapping:
    def __init__(self, smooth_layer: str, balance_layers: list[str], activation_hook_target: str | None = ...) -> None: ...

def plain(value: Any) -> Any: ...

class Modifier:
    arguments: dict[str, Any]
    type_of_recipe: str

class AutoRoundModifier(Modifier):
    def __init__(
        self,
        *,
        targets: str | list[str] | None = ...,
        ignore: str | list[str] | None = ...,
        scheme: str | dict[str, Any] | None = ...,
        config_groups: dict[str, Any] | None = ...,
        kv_cache_scheme: dict[str, Any] | None = ...,
        weight_observer: str | None = ...,
        input_observer: str | None = ...,
        output_observer: str | None = ...,
        observer: str | dict[str, str] | None = ...,
        bypass_divisibility_checks: bool = ...,
        iters: int = ...,
        batch_size: int = ...,
        lr: float | None = ...,
        enable_torch_compile: bool = ...,
        device_ids: str | None = ...,
        disable_opt_rtn: bool = ...,
        error_propagation: bool = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class AWQModifier(Modifier):
    def __init__(
        self,
        *,
        mappings: list[Any] | None = ...,
        offload_device: str | None = ...,
        duo_scaling: bool | str = ...,
        n_grid: int = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class ConstantPruningModifier(Modifier):
    def __init__(
        self,
        *,
        targets: str | list[str] = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class ErrorPropagationModifier(Modifier):
    def __init__(
        self,
        *,
        targets: str | list[str] = ...,
        ignore: str | list[str] = ...,
        strength: float = ...,
        damping: float = ...,
        residual: float = ...,
        unties: bool = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class GPTQModifier(Modifier):
    def __init__(
        self,
        *,
        targets: str | list[str] | None = ...,
        ignore: str | list[str] | None = ...,
        scheme: str | dict[str, Any] | None = ...,
        config_groups: dict[str, Any] | None = ...,
        kv_cache_scheme: dict[str, Any] | None = ...,
        weight_observer: str | None = ...,
        input_observer: str | None = ...,
        output_observer: str | None = ...,
        observer: str | dict[str, str] | None = ...,
        bypass_divisibility_checks: bool = ...,
        block_size: int = ...,
        dampening_frac: float = ...,
        actorder: str | None = ...,
        batched_quantization: int | str | None = ...,
        error_propagation: bool | dict[str, float] | None = ...,
        coordinate_descent: bool | dict[str, float] | None = ...,
        rounded_inputs: bool | None = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class LogarithmicEqualizationModifier(Modifier):
    def __init__(
        self,
        *,
        smoothing_strength: float = ...,
        mappings: list[Any] | None = ...,
        ignore: str | list[str] | None = ...,
        num_calibration_steps: None = ...,
        calibration_function: None = ...,
        algorithm: str = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class MagnitudePruningModifier(Modifier):
    def __init__(
        self,
        *,
        targets: str | list[str] = ...,
        init_sparsity: float = ...,
        final_sparsity: float = ...,
        update_scheduler: str = ...,
        scheduler_args: dict[str, Any] = ...,
        mask_structure: str = ...,
        leave_enabled: bool = ...,
        apply_globally: bool = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class QuantizationModifier(Modifier):
    def __init__(
        self,
        *,
        targets: str | list[str] | None = ...,
        ignore: str | list[str] | None = ...,
        scheme: str | dict[str, Any] | None = ...,
        config_groups: dict[str, Any] | None = ...,
        kv_cache_scheme: dict[str, Any] | None = ...,
        weight_observer: str | None = ...,
        input_observer: str | None = ...,
        output_observer: str | None = ...,
        observer: str | dict[str, str] | None = ...,
        bypass_divisibility_checks: bool = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class REAPPruningModifier(Modifier):
    def __init__(
        self,
        *,
        sparsity: float = ...,
        uniform: bool = ...,
        ignore: list[str] = ...,
        report_path: str | None = ...,
        kept_experts: dict[str, list[int]] | None = ...,
        measured_on: dict[str, Any] | None = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class SmoothQuantModifier(Modifier):
    def __init__(
        self,
        *,
        smoothing_strength: float = ...,
        mappings: list[Any] | None = ...,
        ignore: str | list[str] | None = ...,
        num_calibration_steps: None = ...,
        calibration_function: None = ...,
        algorithm: str = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class SparseGPTModifier(Modifier):
    def __init__(
        self,
        *,
        sparsity: float | list[float] | None = ...,
        sparsity_profile: str | None = ...,
        mask_structure: str = ...,
        owl_m: int | None = ...,
        owl_lmbda: float | None = ...,
        targets: str | list[str] = ...,
        ignore: str | list[str] = ...,
        layer_sparsities: dict[str, float] | None = ...,
        measured_on: dict[str, Any] | None = ...,
        block_size: int = ...,
        dampening_frac: float | None = ...,
        preserve_sparsity_mask: bool = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class SpinQuantModifier(Modifier):
    def __init__(
        self,
        *,
        rotations: list[str] = ...,
        transform_type: str = ...,
        randomize: bool = ...,
        learnable: bool = ...,
        precision: str | None = ...,
        transform_block_size: int | None = ...,
        mappings: None = ...,
        norm_mappings: None = ...,
        transform_config: None = ...,
        where_possible: bool = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class WandaPruningModifier(Modifier):
    def __init__(
        self,
        *,
        sparsity: float | list[float] | None = ...,
        sparsity_profile: str | None = ...,
        mask_structure: str = ...,
        owl_m: int | None = ...,
        owl_lmbda: float | None = ...,
        targets: str | list[str] = ...,
        ignore: str | list[str] = ...,
        layer_sparsities: dict[str, float] | None = ...,
        measured_on: dict[str, Any] | None = ...,
        end: float | None = ...,
        ended_: bool = ...,
        finalized_: bool = ...,
        group: str | None = ...,
        index: int | None = ...,
        initialized_: bool = ...,
        offload_hessians: bool = ...,
        requires_calibration_data: bool = ...,
        sequential_update: bool = ...,
        start: float | None = ...,
        started_: bool = ...,
        update: float | None = ...,
    ) -> None: ...

class MoNEPruningModifier(Modifier):
    def __init__(self, **arguments: Any) -> None: ...  # is not implemented: raises RecipeError

class QADModifier(Modifier):
    def __init__(self, **arguments: Any) -> None: ...  # is not implemented: raises RecipeError

class QuIPModifier(Modifier):
    def __init__(self, **arguments: Any) -> None: ...  # is not implemented: raises RecipeError
