"""Predicts the seconds of a GPTQ run on R ranks, term by term. docs/distributed.md explains the terms.

Divided by R: the forward pass and the Gram matrices (by samples), the choice of scales and the solver (by rows), saving (by
bytes), and the factorizations of a layer's many equal groups (experts). Not divided: start-up, reading weights, the
factorization of a single group and the dequantization of the gathered rows.
Growing towards a constant: the bytes that a rank sends; growing with R: the latency of a collective operation's steps.
"""
import math
from dataclasses import dataclass, replace

from shapes import LinearGroup, Shape

TERMS = ["start", "load", "forward", "gram", "reduce", "factorize", "observe", "solve", "gather", "dequantize", "save"]
STEP_GRAM_BYTES = 64 << 20  # of groups that are compressed in one step, as in schedule/schedule.h
PARALLEL = {"forward", "gram", "observe", "solve", "save"}


@dataclass(frozen=True)
class Machine:
    """The speed of one rank and of the connections. Rates in operations, weights or bytes per second."""
    name: str
    forward: float           # operations
    gram: float              # operations, one triangle
    factorize: float         # operations, K^3 / 3
    solve: float             # operations, rows x K^2
    observe: float           # weights
    dequantize: float        # weights
    load: float              # bytes of weights, from where they are cached to the computing device
    write: float             # bytes, one rank
    write_all: float         # bytes, all ranks together
    link: float              # bytes between two ranks of a node
    network: float           # bytes between two nodes
    latency: float           # seconds of one step of a collective operation
    ranks_per_node: int
    start: float             # seconds until the first layer, data included


# An assumption, not a measurement: 8 accelerators with fast links, nodes connected at 400 Gbit/s.
GPU_NODE = Machine("node of 8 GPUs (assumed figures)", forward=350e12, gram=200e12, factorize=8e12, solve=15e12,
                   observe=20e9, dequantize=200e9, load=25e9, write=2e9, write_all=20e9, link=150e9, network=45e9,
                   latency=15e-6, ranks_per_node=8, start=3.0)
# Measured by benchmarks/distributed/run: SmolLM2-135M on one thread of an AMD EPYC with two cores. Link and latency are fitted
# to two ranks on loopback and used for networks between machines, too. --check uses the rates of another run.
CPU_CORE = Machine("one core of a 2-core machine per rank", forward=174e9, gram=187e9, factorize=43e9, solve=36e9,
                   observe=140e6, dequantize=1.5e9, load=4e9, write=680e6, write_all=1.36e9, link=350e6, network=350e6,
                   latency=500e-6, ranks_per_node=2, start=0.35)
MACHINES = {"gpu": GPU_NODE, "cpu": CPU_CORE}


@dataclass(frozen=True)
class Job:
    """Calibration and scheme."""
    samples: int
    tokens: int          # per sample
    bits: int = 4
    group_size: int = 128

    @property
    def all_tokens(self) -> int:
        return self.samples * self.tokens


def largest_share(count: int, ranks: int) -> float:
    """The share of `count` indivisible items on the rank with the most of them."""
    return math.ceil(count / ranks) / count


def packed_bytes(weights: float, job: Job) -> float:
    """Bytes of codes and bf16 scales."""
    return weights * (job.bits / 8 + 2 / job.group_size)


def steps_of(group: LinearGroup) -> list[int]:
    """The number of a layer's groups of this kind that share a pass over the samples, limited by their Gram matrices."""
    most = max(1, STEP_GRAM_BYTES // (4 * group.columns**2))
    full, rest = divmod(group.count, most)
    return [most] * full + [rest] * (rest > 0)


def owned(group: LinearGroup, count: int, ranks: int) -> int:
    """The number of a step's groups that are owned by one rank: all, the same number for each rank, or none. The others are
    factorized by every rank, and their rows are divided. As in the program, only operations decide."""
    factor, update = group.columns**3 / 3, group.rows * group.columns**2
    if ranks == 1 or count == 1:
        return 0

    def operations(whole: int) -> float:
        return math.ceil(whole / ranks) * (factor + update) + (count - whole) * (factor + update / ranks)

    return min((0, count - count % ranks, count), key=operations)


def reduced_bytes(group: LinearGroup, ranks: int) -> float:
    """Bytes that a rank sends for a layer's groups of this kind: a triangle goes to its owner, or to all ranks."""
    triangles = sum(2 * count - owned(group, count, ranks) for count in steps_of(group))
    return triangles * (ranks - 1) / ranks * group.triangle_bytes


def gathered_bytes(group: LinearGroup, job: Job, ranks: int) -> float:
    return (ranks - 1) / ranks * packed_bytes(group.weights, job)


def sent_bytes(shape: Shape, job: Job, ranks: int) -> float:
    """Bytes that one rank sends in the whole run."""
    return shape.layers * sum(reduced_bytes(group, ranks) + gathered_bytes(group, job, ranks) for group in shape.groups)


def bandwidth(machine: Machine, ranks: int) -> float:
    """The bandwidth of a ring over all ranks: that of its slowest link."""
    return machine.link if ranks <= machine.ranks_per_node else machine.network


def group_seconds(group: LinearGroup, job: Job, machine: Machine, ranks: int) -> dict[str, float]:
    """The terms of one layer's groups of one kind."""
    share = largest_share(job.samples, ranks)
    steps = steps_of(group)
    factorized, rows = 0, 0.0  # groups, and groups' rows, that the busiest rank has
    for count in steps:
        whole = owned(group, count, ranks)
        factorized += math.ceil(whole / ranks) + count - whole
        rows += math.ceil(whole / ranks) + (count - whole) * largest_share(group.rows, ranks)
    rows /= group.count
    square = group.columns**2
    latency = (ranks - 1) * machine.latency
    return {
        "forward": share * 2 * job.all_tokens * group.passes * group.weights / machine.forward,
        "gram": share * job.all_tokens * group.columns * (group.columns + 1) * group.count / machine.gram,
        # Two sums are in flight at a time; a step's packed rows travel in one operation.
        "reduce": reduced_bytes(group, ranks) / bandwidth(machine, ranks) + 2 * latency * math.ceil(group.count / 2),
        "factorize": factorized * group.columns**3 / 3 / machine.factorize,
        "observe": rows * group.weights / machine.observe,
        "solve": rows * group.rows * square * group.count / machine.solve,
        "gather": gathered_bytes(group, job, ranks) / bandwidth(machine, ranks) + latency * len(steps),
        "dequantize": group.weights / machine.dequantize,
    }


def attention_seconds(shape: Shape, job: Job, machine: Machine, ranks: int) -> float:
    """Causal attention of one layer: on average, a token attends to half of its sample."""
    operations = 2 * job.all_tokens * job.tokens * shape.attention_features
    return largest_share(job.samples, ranks) * operations / machine.forward


def seconds(shape: Shape, job: Job, machine: Machine, ranks: int) -> dict[str, float]:
    """All terms of a run. Their sum is the time, because only the reading of weights is assumed to overlap."""
    terms = dict.fromkeys(TERMS, 0.0)
    for group in shape.groups:
        for term, value in group_seconds(group, job, machine, ranks).items():
            terms[term] += shape.layers * value
    terms["forward"] += shape.layers * attention_seconds(shape, job, machine, ranks)
    output = packed_bytes(shape.layers * shape.layer_weights, job) + 2 * shape.embedding_weights
    terms["save"] = max(output / ranks / machine.write, output / machine.write_all)
    # The next layer's weights are read during the work on this one.
    hidden = sum(terms[term] for term in ("forward", "gram", "factorize", "observe", "solve"))
    terms["load"] = max(0.0, shape.bytes / machine.load - hidden)
    terms["start"] = machine.start
    return terms


def blame(shape: Shape, job: Job, machine: Machine, ranks: int) -> str:
    """The term that most exceeds its share of the time on one rank."""
    one, many = seconds(shape, job, machine, 1), seconds(shape, job, machine, ranks)
    return max(TERMS, key=lambda term: many[term] - one[term] / ranks)


def speed_up(shape: Shape, job: Job, machine: Machine, ranks: int) -> float:
    return sum(seconds(shape, job, machine, 1).values()) / sum(seconds(shape, job, machine, ranks).values())


def first_below(share: float, shape: Shape, job: Job, machine: Machine, most: int) -> int | None:
    """The smallest number of ranks from which on the speed-up stays below `share` of linear."""
    below = None
    for ranks in range(2, most + 1):
        if speed_up(shape, job, machine, ranks) < share * ranks:
            below = below or ranks
        else:
            below = None
    return below


def machine_of(summary: dict, machine: Machine, shape: Shape, job: Job) -> Machine:
    """`machine` with the rates of the phases of a measured run on one rank."""
    phases = {name: phase["seconds"] for name, phase in summary["ranks"][0]["phases"].items()}
    predicted = seconds(shape, job, machine, 1)
    rates = {}
    for term in ("forward", "gram", "factorize", "observe", "solve", "dequantize"):
        if phases.get(term, 0) > 0:
            rates[term] = getattr(machine, term) * predicted[term] / phases[term]
    measured_save = phases.get("write", 0) + phases.get("finish", 0)
    if measured_save > 0:
        rates["write"] = machine.write * predicted["save"] / measured_save
        rates["write_all"] = math.inf  # the page cache takes what these ranks write
    named = sum(phases.get(term, 0) for term in ("forward", "gram", "factorize", "observe", "solve", "dequantize"))
    rates["start"] = max(0.0, summary["ranks"][0]["seconds"] - named - measured_save)
    return replace(machine, name=f"rates of {summary['model']} on one rank", load=math.inf, **rates)
