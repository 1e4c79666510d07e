#!/usr/bin/env python3
"""Predicted against measured memory of whole trainings: bench_memory.py BUILD/memfit [--only TEXT] [--save FILE]

Models x batch x optimizer x precision x limit. Each training is a process of its own; while it lives, its RssAnon +
RssShmem are read from /proc/PID/status as fast as possible, from its first instruction to its last. The largest reading is
set against `planned_peak_bytes`: never above; mean gap at most 2 %, largest at most 5 %. Exit status 1 when that does not
hold. Needs nothing but Python: the models are the repository's own fixtures. A limit lies half-way between the model's lower
bound and its unconstrained peak, or as near to that as a plan exists. --save FILE keeps each result as it comes; the next call with it goes on
where this one was stopped.
"""
import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FIXTURES = os.path.join(HERE, "..", "tests", "fixtures")

# name: (file, input shape, small batch, large batch, steps)
MODELS = {
    "dense": ("train/mlp.keras", None, 8, 64, 600),
    "digits": ("train/cnn.keras", None, 8, 64, 200),
    "attention": ("keras/attention.keras", None, 4, 64, 100),
    "recurrent": ("keras/recurrent.keras", None, 4, 64, 100),
    "conv": ("keras/conv_rmsprop.keras", None, 8, 256, 100),
    "MobileNetV2": ("app", "96,96,3", 2, 8, 3),
    "MobileNetV3Small": ("app", "96,96,3", 2, 16, 3),
    "ResNet50": ("app", "64,64,3", 2, 8, 3),
    "VGG16": ("app", "32,32,3", 2, 32, 3),
    "DenseNet121": ("app", "64,64,3", 2, 8, 3),
    "EfficientNetB0": ("app", "64,64,3", 2, 8, 3),
    "Xception": ("app", "96,96,3", 2, 8, 3),
    "InceptionV3": ("app", "96,96,3", 2, 8, 3),
}
# batch (index), optimizer, precision, limited, with validation, checkpoint and output
FORMS = [
    (0, "adam", "float32", False, False),
    (1, "adam", "float32", False, True),
    (1, "adam", "float32", True, True),
    (1, "sgd", "float32", True, False),
    (1, "rmsprop", "mixed_bfloat16", False, False),
    (0, "adamw", "mixed_float16", False, False),
    (1, "lion", "float32", False, False),
]


def resident(pid):
    total = 0
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith("RssAnon:") or line.startswith("RssShmem:"):
                total += int(line.split()[1]) * 1024
    return total


def watched(command):
    """Runs it; (exit status, standard output, largest reading, number of readings)."""
    env = dict(os.environ, GOMP_SPINCOUNT="1000")
    with tempfile.TemporaryFile() as out:
        p = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=env)
        peak = readings = 0
        while p.poll() is None:
            try:
                peak = max(peak, resident(p.pid))
                readings += 1
            except OSError:
                break
            time.sleep(0.0003)  # on two processors a reader without a pause takes one from who is read
        p.wait()
        out.seek(0)
        return p.returncode, out.read().decode(), peak, readings


def planned(memfit, common, optimizer, limit=None):
    command = [memfit, "plan", *common, "--optimizer", optimizer, "--json"]
    out = subprocess.run(command + (["--memory", str(limit)] if limit else []), capture_output=True, text=True)
    return json.loads(out.stdout) if out.returncode == 0 else None


def limit_for(memfit, common, optimizer, free_peak):
    plan = planned(memfit, common, optimizer)
    low = plan["lower_bound_bytes"] if plan else 0
    return [int(low + part * (free_peak - low)) for part in (0.5, 0.7, 0.85)]


def measure(memfit, name, path, form, folder, free):
    file, shape, small, large, steps = MODELS[name]
    which, optimizer, precision, limited, everything = form
    batch = large if which else small
    common = [path, "--batch-size", str(batch), "--precision", precision] + (["--input-shape", shape] if shape else [])
    data = ["--data", f"synthetic:{2 * batch + batch // 2}", "--epochs", str(steps), "--steps", str(steps)]
    extra = ["--validation-data", f"synthetic:{2 * batch}", "--out", os.path.join(folder, "o.keras"), "--checkpoint",
             os.path.join(folder, "c.keras"), "--log-csv", os.path.join(folder, "l.csv")] if everything else []
    command = [memfit, "train", *common, "--optimizer", optimizer, *data, *extra, "--json", "--quiet"]
    limits = limit_for(memfit, common, optimizer, free) if limited and free else [0]
    for limit in limits:
        status, out, peak, readings = watched(command + (["--memory", str(limit)] if limit else []))
        if status == 0:
            break
    if status:
        return {"name": name, "status": status}
    r = json.loads(out)
    return {"name": name, "status": 0, "batch": batch, "optimizer": optimizer, "precision": precision, "limit": limit,
            "planned": r["planned_peak_bytes"], "peak": peak, "readings": readings, "pieces": r["pieces"],
            "recomputed": r["recomputed_ops"], "equal": r["arena_bytes"] == r["arena_used_bytes"],
            "allocations": r["allocations_in_steps"], "fixed": r["fixed_bytes"]}


def row(r, gap):
    mib = lambda b: f"{b / 2**20:.2f}"
    return (f"| {r['name']} | {r['batch']} | {r['optimizer']} | {r['precision']} | {mib(r['limit']) if r['limit'] else '-'} |"
            f" {r['pieces']} | {r['recomputed']} | {mib(r['planned'])} | {mib(r['peak'])} | {100 * gap:.2f} |"
            f" {'yes' if r['equal'] else 'NO'} | {r['allocations']} |")


def kept(path):
    """Results of earlier calls, by model and form."""
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return {tuple(r["key"]): r for r in map(json.loads, f)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("memfit", help="the program, BUILD/memfit")
    parser.add_argument("--only", default="", help="models whose name holds this text")
    parser.add_argument("--save", default="", help="keep each result in this file, and go on from what is there")
    given = parser.parse_args()
    memfit, only, save, began = given.memfit, given.only, given.save, time.time()
    known = kept(save)
    gaps, wrong, refused = [], [], []
    print("| model | batch | optimizer | precision | limit MiB | pieces | recomputed | planned MiB | largest reading MiB | gap % |"
          " arena used = planned | allocations in steps |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            if only not in name:
                continue
            path = os.path.join(FIXTURES, MODELS[name][0])
            if MODELS[name][0] == "app":
                path = os.path.join(folder, name + ".json")  # two lines: what is expected of it, then the model
                with gzip.open(os.path.join(FIXTURES, "applications", name + ".gz")) as packed, open(path, "wb") as f:
                    f.write(packed.read().split(b"\n", 1)[1])
            free = 0
            for form in FORMS:
                key = (name, *map(str, form))
                r = known.get(key)
                if not r:
                    r = dict(measure(memfit, name, path, form, folder, free), key=key)
                    if save:
                        with open(save, "a") as f:
                            f.write(json.dumps(r) + "\n")
                if r["status"] or not r["readings"]:
                    refused.append(f"{name} {form}: exit status {r['status']}")
                    continue
                if form[0] == 1 and form[1] == "adam" and not form[3]:
                    free = r["planned"]
                gap = 1 - r["peak"] / r["planned"]
                gaps.append(gap)
                print(row(r, gap), flush=True)
                if gap < 0 or not r["equal"] or r["allocations"] or (r["limit"] and r["planned"] > r["limit"]):
                    wrong.append(f"{name} {form}")
    mean, most = sum(gaps) / max(len(gaps), 1), max(gaps, default=0)
    print(f"\n{len(gaps)} configurations; above the prediction: {sum(g < 0 for g in gaps)}; gap: mean {100 * mean:.2f} %, largest"
          f" {100 * most:.2f} %; {time.time() - began:.0f} s")
    for text in wrong:
        print("does not hold:", text)
    for text in refused:
        print("not run:", text)
    sys.exit(bool(wrong) or mean > 0.02 or most > 0.05)


main()
