"""The proof that operators treat tokens one by one."""

from layerpress_graph.token_proof import mark_mixing


def reasons(*nodes, shape=(1, "T", 4)):
    """What mark_mixing says of nodes that read values 0 and 1 of this shape: (operator, arguments, shape of the result)."""
    inputs = [{"id": value, "shape": list(shape)} for value in (0, 1)]
    graph = {"inputs": inputs, "parameters": [], "constants": [],
             "nodes": [{"op": f"aten.{name}", "args": arguments, "out": 2 + place, "shape": list(made)}
                       for place, (name, arguments, made) in enumerate(nodes)]}
    mark_mixing(graph)
    return [node.get("mixes") for node in graph["nodes"]]


def test_complex_rotary_embeddings():
    """As DeepSeek V2 turns pairs of features."""
    pairs = [1, "T", 2, 2]
    assert reasons(("polar.default", [{"v": 0}, {"v": 1}], [1, "T", 4]), ("view.default", [{"v": 0}, [1, -1, 2, 2]], pairs),
                   ("view_as_complex.default", [{"v": 3}], [1, "T", 2]), ("mul.Tensor", [{"v": 4}, {"v": 4}], [1, "T", 2]),
                   ("view_as_real.default", [{"v": 5}], pairs)) == [None] * 5


def test_tokens_must_stay_apart():
    assert reasons(("polar.default", [{"v": 0}, {"v": 2}], [1, "T", "T"]), shape=(1, "T", 1)) == ["tokens by tokens"]
    assert reasons(("sum.dim_IntList", [{"v": 0}, [1]], [1, 4])) == ["sum over tokens"]
    assert reasons(("erfinv.default", [{"v": 0}], [1, "T", 4])) == ["erfinv is not known to keep tokens apart"]
