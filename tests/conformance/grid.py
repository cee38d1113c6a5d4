"""Recipes by name: those that Layerpress and LLM Compressor must read alike."""

ROUNDING, GPTQ = "QuantizationModifier", "GPTQModifier"
# Sizes of the model that is compressed; groups of 32 to 128 divide all columns.
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2}
OBSERVER = "memoryless_minmax"  # LLM Compressor's default, named so that Layerpress uses it, too

PRESETS = ["UNQUANTIZED", "W2A16", "W3A16", "W4A16", "W4A16_ASYM", "W5A16", "W6A16", "W7A16", "W8A16", "INT8", "W8A8", "W4A8",
           "FP8_DYNAMIC", "FP8_BLOCK", "W5A17", "FP8", "W4AFP8", "NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "MXFP8", "MXFP8A16", "W2A4",
           "W2A8", "W3A4", "W3A8", "W4A4", "W5A8", "W6A8", "W7A8"]
TARGETS = {
    "class": "Linear",
    "pattern": ["re:.*self_attn.*_proj$"],
    "pattern and name": ["re:.*mlp.(gate|up)_proj$", "model.layers.1.mlp.down_proj"],
    "head": ["Linear", "lm_head"],
    "anchored at the start": ["re:model.layers.1.mlp"],
}
IGNORE = {"head": ["lm_head"], "nothing": [], "pattern": ["re:.*down_proj", "lm_head"], "class": ["Embedding", "lm_head"]}


def wrap(*modifiers):
    """A stage that runs modifiers, each in a group of its own."""
    return {"quant_stage": {f"m{i}_modifiers": {kind: arguments} for i, (kind, arguments) in enumerate(modifiers)}}


def weights(strategy="group", bits=4, **more):
    args = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, **more}
    if strategy == "group":
        args.setdefault("group_size", 32)
    if strategy == "block":
        args.setdefault("block_structure", [16, 64])
    return args


def group(args, targets=("Linear",), **more):
    return {"targets": list(targets), "weights": args, **more}


def groups(*members, kind=ROUNDING, ignore=("lm_head",), names="abcdef", **more):
    arguments = {"ignore": list(ignore), "config_groups": dict(zip(names, members)), **more}
    return wrap((kind, arguments))


def preset(scheme="W8A8", kind=ROUNDING, ignore=("lm_head",), **more):
    return wrap((kind, {"scheme": scheme, "ignore": list(ignore), **more}))


def schemes():
    for kind in (ROUNDING, GPTQ):
        for name in PRESETS:
            yield f"{kind} {name}", preset(name, kind, weight_observer=OBSERVER)
        yield f"{kind} lower case", preset("w8a8", kind, weight_observer=OBSERVER)


def strategies():
    """Modifier x strategy x symmetry x activation order x place of the observer."""
    orders = {"": {}, "null": {"actorder": None}, "static": {"actorder": "static"}, "weight": {"actorder": "weight"}}
    for kind in (ROUNDING, GPTQ):
        for strategy in ("tensor", "channel", "group", "block"):
            for symmetric in (True, False):
                if strategy == "block" and not symmetric:
                    continue  # asymmetric floating point: refused here, in the cases below
                for order, arguments in orders.items() if kind == GPTQ else [("", {})]:
                    for place in ("modifier", "group"):
                        args = weights(strategy, 8 if strategy == "block" else 4, symmetric=symmetric)
                        if strategy == "block":
                            args["type"] = "float"
                        observer = {"weight_observer": OBSERVER}
                        if place == "group":
                            args["observer"], observer = "minmax", {}
                        name = f"{kind} {strategy} {'' if symmetric else 'a'}symmetric order {order or 'none given'} {place}"
                        yield name, groups(group(args), kind=kind, **arguments, **observer)


def orders_at_two_places():
    for own in ("static", "weight", None, "group"):
        for given in ("static", "weight", None, "group", "dynamic", "other", True):
            yield (f"actorder {own} in the group, {given} in the modifier",
                   groups(group(weights("channel", actorder=own, observer=OBSERVER)), kind=GPTQ, actorder=given))
    for own in ("static", "weight", "dynamic"):
        yield f"actorder {own} in the group", groups(group(weights(actorder=own, observer=OBSERVER)), kind=GPTQ)
        yield f"actorder {own} without GPTQ", groups(group(weights("channel", actorder=own, observer=OBSERVER)))


def matching():
    for kind in (ROUNDING, GPTQ):
        for targets_name, targets in TARGETS.items():
            for ignore_name, ignore in IGNORE.items():
                where = f"{kind} targets {targets_name}, ignore {ignore_name}"
                as_list = [targets] if isinstance(targets, str) else targets
                yield f"{where}, preset", preset("W4A16", kind, ignore, targets=targets, weight_observer=OBSERVER)
                yield (f"{where}, presets by target",
                       preset({"W8A8": targets}, kind, ignore, weight_observer=OBSERVER))
                yield (f"{where}, groups",
                       groups(group(weights(observer=OBSERVER), as_list), kind=kind, ignore=ignore))


def observers():
    for name in ("minmax", "memoryless_minmax", "static_minmax", "mse", "memoryless_mse", "MinMax", "memoryless-minmax", "other"):
        yield f"observer {name} of the modifier", preset(weight_observer=name)
        yield f"observer {name} of the group", groups(group(weights(observer=name)))
        yield f"observer {name} in a mapping", preset(observer={"weights": name})
    yield "observer of both, the modifier's holds", groups(group(weights(observer="mse")), weight_observer="minmax")
    yield "observer named twice", preset(weight_observer="minmax", observer={"weights": "minmax"})
    yield "observer for nobody", preset(observer={"weight": "minmax"})
    for name, kwargs in {"known": {"norm": 2.0, "grid": 50, "maxshrink": 0.4, "patience": 3, "expand": 1.2}, "too small": {"expand": 0.5},
                         "averaging": {"averaging_constant": 0.5}}.items():
        yield f"observer mse, arguments: {name}", groups(group(weights(observer="mse", observer_kwargs=kwargs)))
    yield "observer unnamed", preset()
    yield "observer unnamed, GPTQ", preset(kind=GPTQ)


def overlaps():
    eight, four, three = (weights("channel", bits, observer=OBSERVER) for bits in (8, 4, 3))
    yield "overlap class and pattern", groups(group(eight), group(four, ["re:.*down_proj"]))
    yield "overlap class, pattern and name", groups(
        group(eight), group(four, ["re:.*down_proj"]), group(three, ["model.layers.0.mlp.down_proj"]))
    yield "overlap, earlier pattern by alphabet", groups(
        group(eight, ["re:.*mlp.*"]), group(four, ["re:.*down_proj"]))
    yield "overlap, earlier pattern by alphabet, names of groups reversed", groups(
        group(eight, ["re:.*mlp.*"]), group(four, ["re:.*down_proj"]), names="ba")
    yield "overlap, patterns in the order of the alphabet", groups(
        group(four, ["re:.*down_proj"]), group(eight, ["re:.*mlp.*"]))
    yield "overlap, a group has another target first", groups(
        group(eight, ["re:.*zzz.*", "re:.*mlp.*"]), group(four, ["re:.*o_proj"]), group(three, ["re:.*nlp.*"]))
    yield "overlap, one target in two groups", groups(group(eight), group(four), names="za")
    yield "overlap, one target in two groups, reversed", groups(group(four), group(eight), names="za")
    yield "overlap, name and class", groups(group(eight), group(four, ["model.layers.1.self_attn.o_proj"]))
    yield "two groups with equal numbers", groups(
        group(four, ["re:.*self_attn.*"]), group(four, ["re:.*mlp.*"]))
    yield "a group without modules", groups(group(eight), group(four, ["re:.*nothing"]))
    yield "a group hidden by another", groups(group(eight, ["re:.*down_proj"]), group(four, ["re:.*down_proj.*"]))
    yield "a group of which all is ignored", groups(
        group(eight), group(four, ["re:.*down_proj"]), ignore=["lm_head", "re:.*down_proj"])
    yield "two presets", preset({"W8A8": ["re:.*mlp.*"], "FP8_DYNAMIC": ["re:.*self_attn.*"]}, weight_observer=OBSERVER)
    yield "two presets that overlap", preset({"W8A8": ["re:.*mlp.*"], "FP8_DYNAMIC": ["Linear"]}, weight_observer=OBSERVER)
    yield "one pattern in two presets", preset({"W8A8": "Linear", "FP8_DYNAMIC": "Linear"}, weight_observer=OBSERVER)


def several_modifiers():
    attention = {"scheme": "W8A8", "targets": ["re:.*self_attn.*"], "weight_observer": OBSERVER}
    feed_forward = {"config_groups": {"a": group(weights(observer=OBSERVER), ["re:.*mlp.*"])}}
    everything = {"scheme": "W8A8", "ignore": ["lm_head"], "weight_observer": OBSERVER}
    yield "two modifiers", wrap((ROUNDING, attention), (ROUNDING, feed_forward))
    yield "two modifiers, other order", wrap((ROUNDING, feed_forward), (ROUNDING, attention))
    yield "two modifiers of two kinds", wrap((GPTQ, attention), (ROUNDING, feed_forward))
    yield "two modifiers that both name Linear", wrap(
        (ROUNDING, {**everything, "ignore": ["lm_head", "re:.*mlp.*"]}),
        (ROUNDING, {"config_groups": {"a": group(weights(observer=OBSERVER))}, "ignore": ["lm_head", "re:.*self_attn.*"]}))
    yield "two modifiers for one module", wrap((ROUNDING, everything), (ROUNDING, feed_forward))
    for name, arguments in {
            "nothing": {}, "a block size": {"block_size": 64}, "its defaults": {"targets": ["Linear"], "ignore": []},
            "a null scheme": {"scheme": None, "config_groups": None}, "an order": {"actorder": "static"},
            "targets": {"targets": ["re:.*mlp.*"]}, "modules to ignore": {"ignore": ["lm_head"]}}.items():
        yield f"GPTQ with {name} after a scheme", wrap((ROUNDING, everything), (GPTQ, arguments))
    yield "GPTQ with nothing after two schemes", wrap((ROUNDING, attention), (ROUNDING, feed_forward), (GPTQ, {}))
    yield "GPTQ with nothing after groups", wrap(
        (ROUNDING, {"config_groups": {"a": group(weights("channel", actorder="weight", observer=OBSERVER))},
                    "ignore": ["lm_head"]}), (GPTQ, {}))
    yield "GPTQ with nothing before a scheme", wrap((GPTQ, {}), (ROUNDING, everything))
    yield "GPTQ with nothing after GPTQ", wrap((GPTQ, attention), (GPTQ, {}))
    yield "GPTQ with nothing", wrap((GPTQ, {}))
    yield "rounding with nothing", wrap((ROUNDING, {}))


def arguments():
    fields = {"index": 3, "start": 0, "end": 1.5, "update": 0.5, "requires_calibration_data": True, "initialized_": False,
              "finalized_": False, "started_": False, "ended_": False, "bypass_divisibility_checks": False,
              "kv_cache_scheme": None, "input_observer": None}
    for key, value in fields.items():
        yield f"field {key}", preset(weight_observer=OBSERVER, **{key: value})
        yield f"field {key}, GPTQ", preset(kind=GPTQ, weight_observer=OBSERVER, **{key: value})
    wrong = {"index": 1.5, "start": "x", "requires_calibration_data": "maybe", "unknown": 1, "block_size": 64, "config_groups": 3,
             "targets": 5, "scheme": "W4A17"}
    for key, value in wrong.items():
        yield f"wrong {key}", preset(**{"scheme": "W8A8", key: value})
    solver = {"block_size": [1, 32, 128, None, 0], "dampening_frac": [0.1, 0.0001, None],
              "batched_quantization": ["auto", 1, 4, None, 0, "x"]}
    for key, values in solver.items():
        for value in values:
            yield f"{key} {value}", preset(kind=GPTQ, weight_observer=OBSERVER, **{key: value})


def numbers():
    token = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    fp8 = {**token, "type": "float"}
    observed = {"observer": OBSERVER}
    for bits in range(1, 10):
        for strategy in ("channel", "group"):
            yield f"{bits} bits per {strategy}", groups(group(weights(strategy, bits, **observed)))
    yield "int weights, int activations", groups(group(weights("channel", 8, **observed), input_activations=token))
    yield "asymmetric int weights, int activations", groups(
        group(weights("channel", 8, symmetric=False, **observed), input_activations=token))
    yield "fp8 weights alone", groups(group(weights("channel", 8, type="float", **observed)))
    yield "fp8 weights, fp8 activations", groups(group(weights("tensor", 8, type="float", **observed), input_activations=fp8))
    yield "fp8 weights per block", groups(group(weights("block", 8, type="float", **observed), input_activations=fp8))
    yield "group sizes that differ", groups(group(weights(group_size=64, **observed), ["re:.*mlp.*"]),
                                            group(weights(group_size=128, **observed), ["re:.*self_attn.*"]))
    yield "strategy from the group size", groups(
        group({"num_bits": 4, "group_size": 64, **observed}), group({"num_bits": 8, "group_size": -1, **observed}, ["re:.*mlp.*"]))
    yield "a group of nothing but targets", groups({"targets": ["Linear"]})
    yield "a format that is named", groups(group(weights("channel", 8, **observed), format="int-quantized"))
    yield "group size that does not divide", groups(group(weights(group_size=48, **observed)))
    yield "group size beyond the columns", groups(group(weights(group_size=512, **observed)))
    yield "channels with a group size", groups(group(weights("channel", group_size=32, **observed)))
    yield "groups without a size", groups(group({"num_bits": 4, "strategy": "group", **observed}))
    yield "blocks without a structure", groups(group({"num_bits": 8, "type": "float", "strategy": "block", **observed}))
    yield "static token activations", groups(group(weights("channel", 8), input_activations={**token, "dynamic": False}))
    yield "activations per channel", groups(group(weights("channel", 8), input_activations={**token, "strategy": "channel"}))
    yield "an unknown key of the weights", groups(group(weights("channel", 8, bit_width=3)))
    yield "an unknown strategy", groups(group(weights("row", 8)))
    yield "scheme and groups", wrap((ROUNDING, {"scheme": "W8A8", "config_groups": {"a": group(weights())}}))
    yield "no groups", wrap((ROUNDING, {"config_groups": {}, "ignore": ["lm_head"]}))
    yield "nothing matches", preset(targets=["re:.*nothing"])
    yield "nothing matches, GPTQ", preset(kind=GPTQ, targets=["re:.*nothing"])
    yield "q and k differ", groups(group(weights(bits=8, **observed), ["re:.*q_proj"]), group(weights(**observed), ["re:.*k_proj"]))
    yield "a broken pattern", preset(targets=["re:(unclosed"])


def embeddings():
    """GPTQ's scales of embeddings come from uninitialized memory in LLM Compressor, so that only names and shapes are compared."""
    for scheme in ("W8A16", "W4A16", "W4A16_ASYM", "W3A16", "W8A8", "FP8_DYNAMIC", "FP8_BLOCK"):
        yield f"embedding {scheme}", preset(scheme, ignore=(), targets=["Embedding"], weight_observer=OBSERVER)
        yield f"embedding and linears {scheme}", preset(scheme, targets=["Linear", "Embedding"], weight_observer=OBSERVER)
        yield f"embedding and linears {scheme}, GPTQ", preset(
            scheme, GPTQ, targets=["Linear", "Embedding"], weight_observer=OBSERVER)
    yield "embedding alone, GPTQ", preset("W8A16", GPTQ, targets=["Embedding"], weight_observer=OBSERVER)
    yield "embedding by pattern", preset("W8A16", ignore=(), targets=["re:.*embed.*"], weight_observer=OBSERVER)
    yield "embedding by name", preset("W8A16", ignore=(), targets=["model.embed_tokens"], weight_observer=OBSERVER)
    yield "embedding that is ignored", preset("W8A16", ignore=["model.embed_tokens"], targets=["re:.*"], weight_observer=OBSERVER)
    yield "embedding and head", preset("W8A16", ignore=(), targets=["re:.*"], weight_observer=OBSERVER)
    yield "embedding beside linears in another group", groups(
        group(weights("channel", 8, type="float", observer=OBSERVER), ["Embedding"]), group(weights(observer=OBSERVER)))
    yield "embedding beside GPTQ", wrap(
        (ROUNDING, {"scheme": "W8A16", "targets": ["Embedding"], "weight_observer": OBSERVER}),
        (GPTQ, {"scheme": "W4A16", "ignore": ["lm_head"], "weight_observer": OBSERVER}))


def recipes():
    """All recipes by name."""
    parts = (schemes, strategies, orders_at_two_places, matching, observers, overlaps, several_modifiers, arguments, numbers,
             embeddings)
    found = {}
    for part in parts:
        for name, recipe in part():
            assert name not in found, name
            found[name] = recipe
    return found


def core():
    """Names of the recipes that every run of the tests compares: all about overlaps and several modifiers, some of the rest."""
    whole = {name for part in (overlaps, several_modifiers) for name, _ in part()}
    return whole | {name for i, name in enumerate(recipes()) if i % 5 == 0} | set(KEPT)


# Recipes of which LLM Compressor's own recipe.yaml is kept: reading it must give the same checkpoint again.
KEPT = ["QuantizationModifier W4A16", "GPTQModifier W8A8", "GPTQModifier FP8_DYNAMIC",
        "GPTQModifier group symmetric order none given group", "GPTQModifier channel asymmetric order weight modifier",
        "actorder weight in the group", "overlap class and pattern", "overlap, one target in two groups", "two presets",
        "two modifiers of two kinds", "GPTQ with nothing after two schemes", "GPTQ with nothing after groups",
        "observer mse in a mapping", "field start, GPTQ", "asymmetric int weights, int activations"]


def names_observer(recipe):
    """Whether any part of a recipe names an observer."""
    if isinstance(recipe, dict):
        return any(key in ("observer", "weight_observer") or names_observer(value) for key, value in recipe.items())
    return isinstance(recipe, list) and any(names_observer(item) for item in recipe)
