"""Parts of gpu_train.py about memory: what NVML shows for the process beside what was planned and what was allowed."""
import json
import os
import re
import subprocess
import tempfile
import time
import zipfile

from gpu_results import MIB, Turns, allocations, in_parallel, too_late, train


FIRST = [n for n in os.environ.get("GPU_CHECK_FIRST", "s1,mlp,cnn,lstm,s7,s9,resnet50").split(",") if n]
MOST = int(os.environ.get("GPU_CHECK_LIMITS", "34")) # configurations
GAP_MS = float(os.environ.get("GPU_CHECK_GAP", "10")) # looked at less often in the mean: once more, alone


def layers(path):
    """Those of FIRST, then small models: more of them end in the time there is."""
    first = FIRST
    with zipfile.ZipFile(path) as z:
        return first.index(path.stem) if path.stem in first else len(first) + z.read("config.json").count(b'"class_name"'), path.stem


def lower_bound(memfit, path, batch, precision):
    """Of the arena: what no plan can do without."""
    p = subprocess.run([memfit, "plan", path, "--batch-size", str(batch), *precision, "--json", "--quiet"], capture_output=True, text=True)
    try:
        plan = json.loads(p.stdout)
        return plan["lower_bound_bytes"] - plan["fixed_bytes"], ""
    except (ValueError, KeyError):
        return None, p.stderr.strip()[-200:]


BATCHES = {"s1": 32, "s7": 8, "s9": 8, "gpt2": 1, "vit": 8, "lstm": 16, "unet": 2, "mlp": 64, "cnn": 64, "ConvNeXtSmall": 4, "InceptionResNetV2": 4, "NASNetMobile": 4, "ResNet101": 4, "ResNet101V2": 4,
           "VGG16": 4, "VGG19": 4, "DenseNet169": 4, "ConvNeXtTiny": 4, "Xception": 4}
WAYS = ((1.3, "float32"), (2.0, "mixed_bfloat16"))


def limit_cases(models):
    """The first MOST of: those of FIRST; drawn models, each with what was drawn for it (tools/draw_models.py); those of FIRST in the other way; all others,
    model after model, in both: (path, factor, precision or "" for the model's own, batch)."""
    named = sorted((m for m in models if m.stem in FIRST), key=lambda m: FIRST.index(m.stem))
    drawn = [(m, json.loads(m.with_suffix(".json").read_text())) for m in models if m.with_suffix(".json").exists()]
    others = [m for m in models if m not in named and m not in [d[0] for d in drawn]]

    def in_way(m, way):
        return m, *way, BATCHES.get(m.stem, 8)

    return ([in_way(m, WAYS[0]) for m in named] + [(m, d["factor"], "", d["batch"]) for m, d in drawn] + [in_way(m, WAYS[1]) for m in named] + [in_way(m, w) for m in others for w in WAYS])[:MOST]


def name_of(path, factor, precision, batch):
    return f"{path.stem} {precision or 'drawn'} {factor}"


def command_of(path, precision, batch, steps):
    return [str(path), "--data", f"synthetic:{8 * batch}", "--batch-size", str(batch), "--epochs", "1000", "--steps", str(steps), *(["--precision", precision] if precision else [])]


def ready(memfit, results, nvml, models, deadline):
    """For each case of limits: the limit, from the least a plan takes, and what a refusal says is needed must suffice. Its kernels are kept by then."""
    cases = [c for c in limit_cases(models) if not results.has("ready " + name_of(*c)) and not results.has("limits " + name_of(*c))]
    if not cases or too_late(deadline):
        return
    if not results.has("ready: the fixed cost"):
        rc, j, said, _ = train(memfit, str(next(m for m in models if m.stem in ("s1", "mlp"))), "--data", "synthetic:64", "--steps", "2")
        results.put("ready: the fixed cost", j is not None, fixed=j and j["fixed_bytes"], error="" if j else said)
        if not j:
            return
    fixed = results.seen["ready: the fixed cost"]["fixed"] + 24 * MIB # beside the context: libraries' code that larger models load

    def one(path, factor, precision, batch):
        case = "ready " + name_of(path, factor, precision, batch)
        bound, why = lower_bound(memfit, str(path), batch, ["--precision", precision] if precision else [])
        if bound is None:
            return results.put(case, False, error=why)
        limit, needs = fixed + int(factor * bound), []
        while True:
            rc, j, said, _ = train(memfit, *command_of(path, precision, batch, 2), "--memory", str(limit), timeout=max(10, deadline + 22 - time.time()))
            need = said.split("needs ")[1].split(",")[0] if rc == 3 and "needs " in said else None
            if not need or len(needs) == 2: # what kernels take is known only then
                break
            needs.append(need)
            limit = int(float(need.split()[0]) * (1 << 30 if "GiB" in need else MIB)) + 64 * 1024
        if rc < 0:
            return results.not_ended(case)
        return results.put(case, rc == 0, rc=rc, limit=limit, needs=needs, bound_factor=round((limit - fixed) / max(bound, 1), 2), error="" if j else said)

    in_parallel([lambda c=c: one(*c) for c in cases], 6, deadline)


def limits(memfit, results, nvml, models, deadline):
    """Two at once, and alone those that were looked at less often than every GAP_MS: for an answer NVML waits for whatever else the driver does."""
    def one(path, factor, precision, batch, alone=False):
        case, began = name_of(path, factor, precision, batch), time.time()
        first = results.seen["ready " + case]
        limit = first["limit"]
        nvml.whole()
        rc, j, said, pid = train(memfit, *command_of(path, precision, batch, 200), "--memory", str(limit), timeout=max(10, deadline + 22 - time.time()))
        if rc < 0:
            return results.not_ended("limits " + case)
        seen, card = nvml.peak(pid), nvml.whole()
        if not j:
            return results.put("limits " + case, False, rc=rc, limit_mib=limit // MIB, error=said)
        planned, over = j["planned_peak_bytes"], 100 * (j["planned_peak_bytes"] - seen) / max(seen, 1)
        count, gap, span = nvml.sampled(pid)
        mean = 1000 * span / max(count - 1, 1)
        before = results.seen.get("limits " + case)
        if before and before["good"] and before["mean_gap_ms"] <= mean:
            return None
        more = {}
        if alone and card["rest"][0] is not None: # nobody else was on the card: its use is the process's, less what no process is shown for
            more = {"card_mib": round((card["peak"] - card["rest"][0]) / MIB, 1), "card_looks": card["count"], "card_gap_ms": round(1000 * card["span"] / max(card["count"] - 1, 1), 2),
                    "card_longest_ms": round(1000 * card["longest"]), "rest_mib": [round(r / MIB, 2) for r in card["rest"]]}
        good = 0 < seen <= limit and seen <= planned and over <= 5 and j["steps"] == 200 and not allocations(j)["allocations"] and more.get("card_mib", 0) * MIB <= limit + MIB // 10
        return results.put("limits " + case, good, limit_mib=limit // MIB, nvml_mib=round(seen / MIB, 1), planned_mib=round(planned / MIB, 2), over_percent=round(over, 2), batch=batch, samples=count,
                           mean_gap_ms=round(mean, 1), longest_gap_ms=round(1000 * gap), fixed_mib=round(j["fixed_bytes"] / MIB, 1), pieces=j["pieces"], recomputed=j["recomputed_ops"], step_ms=round(j["step_ms"], 3),
                           needs=first["needs"], bound_factor=first["bound_factor"], nvml_ms=card["cost_ms"], **more, seconds=round(time.time() - began, 1), **allocations(j))

    cases = [c for c in limit_cases(models) if not results.has("limits " + name_of(*c))]
    if cases:
        ready(memfit, results, nvml, models, deadline)
    nvml.every(0.003)
    found = [c for c in cases if results.has("ready " + name_of(*c))]
    Turns.add_left(len(cases) - len(found))
    in_parallel([lambda c=c: one(*c) for c in found], 2, deadline)
    for c in limit_cases(models):
        row = results.seen.get("limits " + name_of(*c), {})
        if row.get("good") and row["mean_gap_ms"] > GAP_MS and time.time() < deadline - 2 * row["seconds"]:
            one(*c, alone=True)
    nvml.every(0.01)
    rows = [r for c, r in results.seen.items() if c.startswith("limits ") and "over_percent" in r]
    if rows:
        over, gaps = [r["over_percent"] for r in rows], [r["mean_gap_ms"] for r in rows]
        print(f"limits: {len(rows)} configurations, planned above NVML: mean {sum(over) / len(over):.2f} %, least {min(over):.2f} %, most {max(over):.2f} %; looked at every {min(gaps):.1f} to {max(gaps):.1f} ms, "
              f"{sum(g <= GAP_MS for g in gaps)} of them each {GAP_MS:g} ms or less, longest {max(r['longest_gap_ms'] for r in rows)} ms", flush=True)


def fixed(memfit, results, nvml, models, deadline):
    path, seen, wrong = str(next(m for m in models if m.stem in ("s1", "mlp"))), [], []

    def start():
        rc, j, said, pid = train(memfit, path, "--data", "synthetic:64", "--epochs", "100000", "--steps", "400")
        (seen if j else wrong).append((j["fixed_bytes"] / MIB, nvml.peak(pid) / MIB) if j else said)

    if not results.has("fixed: ten starts"):
        in_parallel([start] * 10, 2, deadline)
        if len(seen) == 10:
            spread = max(max(s[i] for s in seen) - min(s[i] for s in seen) for i in (0, 1))
            results.put("fixed: ten starts", spread <= 4 and all(s[1] > 0 for s in seen), spread_mib=round(spread, 2), fixed_mib=sorted({round(s[0], 2) for s in seen}), nvml_mib=sorted({s[1] for s in seen}))
        elif wrong:
            results.put("fixed: ten starts", False, error=wrong[0])
        else:
            results.not_ended(f"fixed: {len(seen)} of 10 starts")
    if not results.has("fixed: a limit below it") and not too_late(deadline):
        rc, j, said, _ = train(memfit, path, "--data", "synthetic:64", "--steps", "2")
        cost = j["fixed_bytes"] if j else 0
        rc, j, said, _ = train(memfit, path, "--data", "synthetic:64", "--steps", "2", "--memory", str(int(0.9 * cost)))
        named = [float(n) for n in re.findall(r"([0-9.]+) MiB", said)]
        # what it takes is known to the page of the card's own that the context has; kernels come on top of it
        good = rc == 3 and any(0.9 * cost / MIB < n <= cost / MIB + 8 for n in named)
        results.put("fixed: a limit below it", good, rc=rc, fixed_mib=round(cost / MIB, 2), limit_mib=round(0.9 * cost / MIB, 2), said=said)


def steady(memfit, results, nvml, models, deadline):
    """No step takes host memory: memfit's own requests are none, the driver's no more in five times the steps; and NVML shows the same."""
    path = str(next(m for m in models if m.stem == "cnn"))

    def one(case, more):
        rows = []
        for steps in (80, 400):
            with tempfile.TemporaryDirectory() as d:
                kept = ["--checkpoint", f"{d}/kept.keras", "--save-freq", "20"] if "checkpoints" in case else []
                rc, j, said, pid = train(memfit, path, "--data", "synthetic:640", "-b", "32", "--epochs", "1000", "--steps", str(steps), *more, *kept)
            if not j:
                return results.put(case, False, rc=rc, error=said)
            rows.append({**allocations(j), "nvml": nvml.peak(pid)})
        good = all(r["allocations"] == 0 for r in rows) and rows[1]["driver_allocations"] <= rows[0]["driver_allocations"] and rows[0]["nvml"] == rows[1]["nvml"] > 0
        return results.put(case, good, steps=[80, 400], own=[r["allocations"] for r in rows], driver=[r["driver_allocations"] for r in rows], nvml_mib=[r["nvml"] // MIB for r in rows])

    cases = (("steady", []), ("steady validation", ["--validation-split", "0.2"]), ("steady offload", ["--offload", "optimizer"]), ("steady in pieces", ["--gradient-accumulation", "4"]), ("steady checkpoints", []),
             ("steady bfloat16", ["--precision", "mixed_bfloat16"]))
    in_parallel([lambda c=c: one(*c) for c in cases if not results.has(c[0])], 2, deadline)
