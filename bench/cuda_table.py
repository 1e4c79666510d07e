#!/usr/bin/env python3
"""The table of docs/bench/cuda.md out of what bench_cuda.py wrote: cuda_table.py cuda.jsonl...

Of several rows of a case the last whole one stands, else the last. A row's peers are of its own call; the letter says which call. Bold: beyond the goal.
"""
import json
import sys
import time

from bench_cuda import CASES, is_extra

# case: what stands in the table, its goal in words, the same as a bound: of the ratio to the best peer, of ms, of memfit's GB, of the ratio of memory
GOALS = {
    "gpt2-bf16": ("GPT-2 124M, 8 x 1024, bf16", "1.0 x; 6.5 GB", {"ratio": 1.0, "gb": 6.5}),
    "gpt2-bf16-6.5GB": ("the same inside 6.5 GB", "1.0 x", {"ratio": 1.0, "gb": 6.5}),
    "gpt2-bf16-4.5GB": ("the same inside 4.5 GB", "1.15 x", {"ratio": 1.15, "gb": 4.5}),
    "gpt2-b64-bf16": ("GPT-2 124M, 64 x 1024, bf16", "1.0 x, aim 500,000 tokens/s (131 ms)", {"ratio": 1.0}),
    "resnet50-bf16": ("ResNet50 b256, bf16", "1.0 x, aim 34 ms; 11 GB", {"ratio": 1.0, "gb": 11}),
    "resnet50-bf16-tuned": ("the same by `memfit tune`'s times", "1.0 x, aim 34 ms", {"ratio": 1.0}),
    "resnet50-bf16-7.5GB": ("the same inside 7.5 GB", "43 ms", {"ms": 43, "gb": 7.5}),
    "resnet50-bf16-6GB": ("the same inside 6 GB", "50 ms", {"ms": 50, "gb": 6}),
    "resnet50-b1024-bf16": ("ResNet50 b1024, bf16", "1.0 x", {"ratio": 1.0}),
    "resnet50-b1024-bf16-20GB": ("the same inside 20 GB", "1.25 x", {"ratio": 1.25, "gb": 20}),
    "s9-bf16": ("S9 b32, bf16", "0.95 x; 2.0 GB", {"ratio": 0.95, "gb": 2.0}),
    "s9-bf16-tuned": ("the same by `memfit tune`'s times", "0.95 x; 2.0 GB", {"ratio": 0.95, "gb": 2.0}),
    "s9-bf16-1.5GB": ("the same inside 1.5 GB", "1.2 x", {"ratio": 1.2, "gb": 1.5}),
    "s9-tf32": ("S9 b32, TF32", "1.0 x; 3.2 GB", {"ratio": 1.0, "gb": 3.2}),
    "s9-tf32-tuned": ("the same by `memfit tune`'s times", "1.0 x; 3.2 GB", {"ratio": 1.0, "gb": 3.2}),
    "s7-tf32": ("S7 b256, TF32, inside 8 GiB", "60 ms, aim 35", {"ms": 60, "gb": 8.59}),
    "s7-bf16": ("S7 b256, bf16, inside 6 GiB", "50 ms", {"ms": 50, "gb": 6.45}),
    "unet-bf16": ("U-Net 256 x 256 b16, bf16", "1.0 x; 0.7 x the memory", {"ratio": 1.0, "memory": 0.7}),
    "unet-bf16-tuned": ("the same by `memfit tune`'s times", "1.0 x", {"ratio": 1.0}),
    "unet-bf16-0.7x": ("the same inside 0.7 x (3.03 GB)", "1.0 x; 0.7 x the memory", {"ratio": 1.0, "memory": 0.7}),
    "mobilenetv2-bf16": ("MobileNetV2 b256, bf16", "1.0 x; 0.7 x the memory", {"ratio": 1.0, "memory": 0.7}),
    "mobilenetv2-bf16-0.7x": ("the same inside 0.7 x (6.38 GB)", "1.0 x; 0.7 x the memory", {"ratio": 1.0, "memory": 0.7}),
    "vit-bf16": ("ViT-B/16 b64, bf16", "1.0 x; 0.7 x the memory", {"ratio": 1.0, "memory": 0.7}),
    "vit-bf16-0.7x": ("the same inside 0.7 x (4.68 GB)", "1.0 x; 0.7 x the memory", {"ratio": 1.0, "memory": 0.7}),
    "lstm-bf16": ("LSTM text model b64, bf16", "1.2 x; 0.7 x the memory", {"ratio": 1.2, "memory": 0.7}),
    "s1-f32": ("S1 b32, float32", "0.04 ms", {"ms": 0.04}),
}


def bold(text, beyond):
    return f"**{text}**" if beyond else text


def number(ms):
    return f"{ms:.3f}" if ms < 1 else f"{ms:.1f}"


def cells(case, row, call):
    title, goal, bound = GOALS[case]
    m, peers = row["memfit"], [p for p in row["peers"] if "step_ms" in p]
    best = min(peers, key=lambda p: p["step_ms"]) if peers else None
    ratio = m["step_ms"] / best["step_ms"] if best else None
    plain = [p for n, p in zip(CASES[case][4], row["peers"]) if "step_ms" in p and not is_extra(n)]
    memory = m["nvml_mib"] / plain[0]["nvml_mib"] if plain and plain[0]["nvml_mib"] else None
    slow = (ratio or 0) > bound.get("ratio", 9e9) + 0.0005 or m["step_ms"] > bound.get("ms", 9e9)
    much = m["nvml_mib"] * 2**20 > bound.get("gb", 9e9) * 1e9 or (memory or 0) > bound.get("memory", 9e9)
    others = ", ".join(f"{p['peer'].split()[0]} {p['peer'].split()[-1]} {number(p['step_ms'])}" for p in peers)
    return [f"{title} ({call})", bold(number(m["step_ms"]), slow), others or "–", f"{ratio:.2f}" if ratio else "–", goal,
            bold(f"{m['nvml_mib']:,}", much) + (f" ({memory:.2f} x)" if memory else ""), f"{m['planned_peak_bytes'] / 2**20:,.0f}", f"{plain[0]['nvml_mib']:,}" if plain else "–",
            str(m["recomputed_ops"]), str(m["pieces"])]


def main():
    rows, calls = {}, {}
    for path in sys.argv[1:]:
        for line in open(path):
            row = json.loads(line)
            calls.setdefault(row["call"], None)
            if row["memfit"].get("step_ms") and not row["memfit"]["rc"]:
                row["whole"] = all("step_ms" in p for n, p in zip(CASES[row["case"]][4], row["peers"]) if not is_extra(n))
                if row["whole"] or not rows.get(row["case"], row)["whole"] or row["case"] not in rows:
                    rows[row["case"]] = row
    names = {c: chr(ord("A") + i) for i, c in enumerate(sorted(calls))}
    for c, n in names.items():
        print(f"{n}: {time.strftime('%Y-%m-%d %H:%M', time.gmtime(c))} UTC")
    print("| work | memfit, ms | peers of the same call, ms | ratio to the best | goal | memfit, MiB | planned | torch, MiB | run again | pieces |")
    print("|---" * 10 + "|")
    for case in GOALS:
        if case in rows:
            print("| " + " | ".join(cells(case, rows[case], names[rows[case]["call"]])) + " |")
        else:
            print(f"| {GOALS[case][0]} | not timed | | | {GOALS[case][1]} | | | | | |")
    for case, row in rows.items():
        if case.endswith("-cold"):
            print(f"start to first step: {row['memfit']['first_step_seconds']:.1f} s with no kernel kept ({names[row['call']]})")
    cached = rows.get("resnet50-bf16")
    if cached:
        print(f"start to first step: {cached['memfit']['first_step_seconds']:.1f} s, kernels kept ({names[cached['call']]})")


if __name__ == "__main__":
    main()
