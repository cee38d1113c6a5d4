"""The comparison as Markdown: the setting, one line per contender, and Layerpress phase by phase."""
import os
import platform
from dataclasses import dataclass

from contenders import Contender, Job

PRODUCTS = ("forward", "original", "gram", "cross")  # phases whose arithmetic is large products in the model's dtype


@dataclass
class Limit:
    """How fast PyTorch multiplies large matrices on this machine."""
    dtype: str
    gflops: float


@dataclass
class Setting:
    """The conditions, besides the programs, on which the figures depend."""
    model: str
    text: str
    runs: int
    evaluation_samples: int
    limit: Limit


def machine() -> str:
    """CPU model, usable cores and memory."""
    name = platform.processor() or platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{len(os.sched_getaffinity(0))} cores of {name}, {memory:.0f} GiB of memory"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def own_seconds(contender: Contender) -> str:
    """The time that the program itself reports, without start-up and imports; for LLM Compressor, one-shot + save."""
    summary = contender.summaries[-1]
    if "oneshot_seconds" in summary:
        return f"{summary['oneshot_seconds']:.1f} + {summary['save_seconds']:.1f}"
    return f"{summary['seconds']:.1f}" if isinstance(summary.get("seconds"), (int, float)) else "-"


def ratio(value: float, other: float, form: str) -> str:
    return form.format(value / other) if other else "-"


def contender_row(contender: Contender, rival: Contender | None) -> list[str]:
    quality, other = contender.quality, rival.quality if rival else {}
    divergence = f"{quality['kl_divergence']:.4f}" if quality else "-"
    perplexity = f"{quality['perplexity']:.2f}" if quality else "-"
    return [
        f"{contender.program} {contender.algorithm.upper()} {contender.observer}",
        f"{contender.seconds:.1f}",
        own_seconds(contender),
        ratio(rival.seconds, contender.seconds, "{:.2f}x") if rival else "-",
        f"{contender.peak_bytes / 2**20:.0f}",
        ratio(contender.peak_bytes, rival.peak_bytes, "{:.2f}") if rival else "-",
        f"{contender.size / 2**20:.1f}",
        divergence,
        ratio(quality["kl_divergence"], other["kl_divergence"], "{:.3f}") if quality and other else "-",
        perplexity,
        ratio(quality["perplexity"], other["perplexity"], "{:.3f}") if quality and other else "-",
    ]


def contender_table(all_contenders: list[Contender]) -> str:
    header = ["", "seconds", "reported seconds", "faster", "peak MiB", "ratio", "weights MiB", "KL to base", "ratio",
              "perplexity", "ratio"]
    peers = {contender.observer: contender for contender in all_contenders if contender.program == "LLM Compressor"}
    rows = [contender_row(contender, peers.get(contender.rival)) for contender in all_contenders]
    return table(header, rows)


def phases_of(summary: dict) -> dict[str, dict]:
    """The phases of a summary, which are an object keyed by name or a list of objects with a name."""
    phases = summary.get("phases", {})
    if isinstance(phases, list):
        phases = {phase["name"]: phase for phase in phases if isinstance(phase, dict) and "name" in phase}
    return {name: phase for name, phase in phases.items() if isinstance(phase, dict) and "seconds" in phase}


def phase_table(contender: Contender, limit: float) -> str:
    """Seconds of the last run by phase, and throughput relative to the machine's limit."""
    phases = phases_of(contender.summaries[-1])
    if not phases:
        return ""
    rows = []
    for name, phase in phases.items():
        seconds, work = phase["seconds"], phase.get("flops")
        rate = work / seconds / 1e9 if work and seconds else None
        rows.append([
            name,
            f"{seconds:.2f}",
            f"{seconds / contender.runs[-1].seconds:.0%}",
            f"{phase['peak_bytes'] / 2**20:.0f}" if phase.get("peak_bytes") else "-",
            f"{work / 1e9:.0f}" if work else "-",
            f"{rate:.0f}" if rate else "-",
            f"{rate / limit:.0%}" if rate else "-",
        ])
    rest = contender.runs[-1].seconds - sum(phase["seconds"] for phase in phases.values())
    rows.append(["start-up and outside all phases", f"{rest:.2f}", f"{rest / contender.runs[-1].seconds:.0%}",
                 "-", "-", "-", "-"])
    header = ["phase", "seconds", "of the process", "peak MiB", "GFLOP", "GFLOP/s", "of the limit"]
    products = sum(phase.get("flops", 0) for name, phase in phases.items() if name in PRODUCTS) / 1e9 / limit
    share = (f"At the limit, its products ({', '.join(name for name in phases if name in PRODUCTS)}) would take {products:.2f} seconds, "
             f"{products / contender.runs[-1].seconds:.0%} of the process.")
    return f"Layerpress {contender.algorithm.upper()} {contender.observer}, phase by phase:\n\n{table(header, rows)}\n\n{share}"


def introduction(setting: Setting, job: Job, base_perplexity: float | None) -> str:
    lines = [
        f"{setting.model}, 4-bit weights in groups of {job.group_size}, lm_head ignored; {job.samples} samples of up to "
        f"{job.max_seq_length} tokens of {setting.text}, the same token ids on both sides. On {machine()}.",
        "",
        f"*seconds* is the wall time of the whole process, the median of {setting.runs} run(s); the programs take turns. "
        "*reported seconds* is what the program itself reports, without start-up; for LLM Compressor, compression + saving. "
        "*peak* is the largest resident set, mapped pages included. Ratios compare with LLM Compressor 0.14.0.1 using the "
        "same observer (`hessian` is compared with its `mse`); below 1 is better, except for *faster*.",
    ]
    if base_perplexity:
        lines.append(f"KL and perplexity are computed by PyTorch in fp32 on {setting.evaluation_samples} held-out samples, one "
                     f"at a time; the base's perplexity is {base_perplexity:.2f}.")
    if job.cpu:
        lines.append(f"Both sides run as on a CPU that has {job.cpu} and nothing better, LLM Compressor in {job.peer_dtype}.")
    lines.append(f"The limit for {setting.limit.dtype} products, measured with PyTorch on this machine, is "
                 f"{setting.limit.gflops:.0f} GFLOP/s.")
    return "\n".join(lines)


def markdown(setting: Setting, job: Job, all_contenders: list[Contender], base_quality: dict) -> str:
    parts = [introduction(setting, job, base_quality.get("perplexity")), contender_table(all_contenders)]
    parts += [phase_table(contender, setting.limit.gflops) for contender in all_contenders
              if contender.program == "Layerpress" and contender.algorithm == "gptq"]
    return "\n\n".join(part for part in parts if part) + "\n"
