"""Parts of gpu_train.py about numbers: a card's against the reference's, the cpu device's, and its own by other ways."""
import json
import os
import pathlib
import subprocess
import time
import zipfile

from gpu_results import MIB, NOT_BUILT, allocations, in_parallel, kept_folder, program, too_late, train

ROOT = pathlib.Path(__file__).resolve().parent.parent
KIND_PARTS = int(os.environ.get("GPU_CHECK_KIND_PARTS", "56"))


def read_table(text):
    """check_kinds' table as {kind: [cases, worst, ...] of float32, float64, bfloat16, float16, TF32}; None where there was no case."""
    rows = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) > 10 and words[0] not in ("kind", "FAILED") and words[1].replace("-", "0").isdigit():
            rows[words[0]] = [None if w == "-" else float(w) for w in words[1:11]]
    return rows


def add_tables(tables):
    """One table of all parts: cases add, the largest error stays."""
    out = {}
    for table in tables:
        for kind, row in table.items():
            into = out.setdefault(kind, [0, 0.0] * 5)
            for i in range(0, 10, 2):
                into[i] += int(row[i] or 0)
                into[i + 1] = max(into[i + 1], row[i + 1] or 0)
    return out


def print_kinds(results):
    whole = add_tables(r.get("table", {}) for c, r in results.seen.items() if c.startswith("kinds "))
    for kind, row in whole.items():
        cells = [f"{row[i]}, {row[i + 1]:.1e}" if row[i] else "-" for i in range(0, 10, 2)]
        print(f"| `{kind}` | " + " | ".join(cells) + " |")
    if whole:
        print(f"{sum(sum(r[0::2]) for r in whole.values())} cases of {len(whole)} kinds", flush=True)


def kinds(memfit, results, nvml, models, deadline):
    """Every kind of operation against the reference, graph by graph in parts. GPU_CHECK_KINDS=NAME,NAME@K/N,case:NAME,... has some of them
    first, each by itself, or the Kth part of N of it; case:NAME is a group of graphs in all its forms."""
    check = program(memfit, "check_kinds")
    if not check:
        return NOT_BUILT

    def one(case, *which):
        began = time.time()
        try:
            p = subprocess.run([check, "--on", "card", *which], capture_output=True, text=True, timeout=max(10, deadline + 22 - time.time()), env={**os.environ, "OMP_NUM_THREADS": "1"})
        except subprocess.TimeoutExpired:
            return results.not_ended(case)
        failed = [line for line in p.stdout.splitlines() if line.startswith(("FAILED", "    method ", "cancels"))]
        return results.put(case, p.returncode == 0, rc=p.returncode, seconds=round(time.time() - began), said=(p.stdout.strip().splitlines() or [p.stderr[-200:]])[-1], first=[f[:300] for f in failed[:12]], table=read_table(p.stdout))

    named = [n.partition("@") for n in os.environ.get("GPU_CHECK_KINDS", "").split(",") if n]
    jobs = [(f"kinds {''.join(n)}", "--random", "0" if "case:" in n[0] else "4", "--case" if "case:" in n[0] else "--kind", n[0].removeprefix("case:"), "--part", n[2] or "0/1") for n in named]
    jobs += [(f"kinds {k}/{KIND_PARTS}", "--random", os.environ.get("GPU_CHECK_RANDOM", "112"), "--part", f"{k}/{KIND_PARTS}") for k in range(KIND_PARTS)]
    in_parallel([lambda j=j: one(*j) for j in jobs if not results.has(j[0])], min(14, os.cpu_count() or 1), deadline)
    return print_kinds(results)


def numbers(j, path=""):
    """Losses, metrics and validation, flat."""
    out = {}
    for k, v in (j or {}).items():
        if path or k in ("loss", "metrics", "validation"):
            if isinstance(v, dict):
                out.update(numbers(v, path + k + "."))
            elif isinstance(v, (int, float)) and not isinstance(v, bool):
                out[path + k] = v
    return out


def on_cpu(memfit, *args):
    p = subprocess.run([memfit, "train", *args, "--device", "cpu", "--json", "--quiet"], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    try:
        return json.loads(p.stdout) if p.returncode == 0 else None, p.stderr.strip()[-300:]
    except ValueError:
        return None, p.stderr.strip()[-300:]


def worst_difference(a, b):
    a, b = numbers(a), numbers(b)
    return max([abs(a[k] - b[k]) / (abs(a[k]) + 1e-3) for k in a if k in b] or [float("inf")])


def curves(memfit, results, nvml, models, deadline):
    fixtures = pathlib.Path(os.environ.get("GPU_CHECK_FIXTURES", ROOT / "tests/fixtures"))
    jobs, longer = [], []
    for case in json.load(open(fixtures / "fit/cases.json")):
        options = [str(fixtures / "fit" / o[5:]) if o.startswith("HELD:") else o for o in case["options"]]
        if "CLASSES" not in options and "--keep-best" not in options:
            longer.append((case["name"], [str(fixtures / "fit" / case["model"]), "--data", str(fixtures / "fit" / case["data"]), "--epochs", str(case["epochs"]), *options]))
    for path in [p for folder in ("cuda/small", "train", "keras") for p in sorted((fixtures / folder).glob("*.keras"))]:
        jobs.append((path.stem, [str(path), "--data", "synthetic:192", "--steps", "8", "--seed", "3"]))
        jobs.append((path.stem + " in pieces", [str(path), "--data", "synthetic:192", "--steps", "8", "--gradient-accumulation", "4"]))

    def one(name, args):
        a, why = on_cpu(memfit, *args)
        if not a: # what the cpu does not train is no case
            return print(f"curves {name}: no case: {why.splitlines()[0][:120] if why else ''}", flush=True)
        rc, b, said, _ = train(memfit, *args, timeout=max(10, deadline + 22 - time.time()))
        if rc == -1:
            return results.not_ended(f"curves {name}")
        worst = worst_difference(a, b) if b else None
        return results.put(f"curves {name}", b and worst <= 2e-3 and not allocations(b)["allocations"], worst=worst and float(f"{worst:.1e}"), error="" if b else said, **(allocations(b) if b else {}))

    in_parallel([lambda n=n, a=a: one(n, a) for n, a in jobs + longer if not results.has(f"curves {n}")], 8, deadline)


def split(memfit, results, nvml, models, deadline):
    """S7 at full size, in one piece and in pieces."""
    if nvml.total() < 54 << 30:
        return f"in one piece S7 takes 50 GiB, the card has {nvml.total() / (1 << 30):.1f}"
    path = str(next(m for m in models if m.stem == "s7"))
    ways = {}
    for name, more in (("unsplit", ["--gradient-accumulation", "off"]), ("split", ["--memory", "8GiB"])):
        if results.has("split S7 " + name):
            ways[name] = results.seen["split S7 " + name]["loss"]
            continue
        if too_late(deadline):
            continue
        rc, j, said, pid = train(memfit, path, "--data", "synthetic:256", "-b", "256", "--steps", "2", *more, timeout=max(30, min(100, deadline + 40 - time.time())))
        if rc == -1:
            results.not_ended("split S7 " + name)
            continue
        if not j:
            results.put("split S7 " + name, False, error=said)
            continue
        ways[name] = j["loss"]
        results.put("split S7 " + name, nvml.peak(pid) <= j["planned_peak_bytes"], loss=j["loss"], pieces=j["pieces"], nvml_mib=nvml.peak(pid) // MIB,
                    planned_mib=j["planned_peak_bytes"] // MIB, step_ms=round(j["step_ms"], 1))
    if len(ways) == 2:
        apart = abs(ways["split"] - ways["unsplit"]) / (abs(ways["unsplit"]) + 1e-3)
        results.put("split S7: losses agree", apart <= 1e-4, apart=float(f"{apart:.1e}"))
    return None


def weights_of(path):
    """All numbers of a model's file, headers among them, as float32: two files of one program have them at the same places."""
    import numpy
    with zipfile.ZipFile(path) as z:
        data = z.read(next(n for n in z.namelist() if n.endswith(".h5")))
    return numpy.frombuffer(data[:len(data) // 4 * 4], "<f4").astype("float64")


def rounding(memfit, results, nvml, models, deadline):
    """Is what differs between engines rounding? ResNet50's first update and first losses by several ways, against the cpu device in float32. The cpu's own two ways to sum (AVX, SSE2) say how much
    rounding alone moves the update: a network that has just been drawn makes a relative 1e-6 of its loss a percent of its gradient."""
    try:
        import numpy
    except ImportError:
        return "python3 has no numpy"
    path = next((str(m) for m in models if m.stem == "resnet50"), None)
    if not path or results.has("rounding ResNet50"):
        return None
    base = [path, "--data", "synthetic:32", "--batch-size", "8", "--no-shuffle", "--seed", "5", "--optimizer", "sgd", "--learning-rate", "0.01"]
    none = {"MEMFIT_LIB_CUDNN": "/nonexistent/libcudnn.so.9"}
    ways = {"cpu float32": ("cpu", "float32", {}), "cpu float32, SSE2": ("cpu", "float32", {"MEMFIT_ISA": "sse2"}), "card float32": ("cuda", "float32", {}), "card float32, own kernels": ("cuda", "float32", none), "card bfloat16": ("cuda", "mixed_bfloat16", {})}
    made, losses, rows = {}, {}, {}
    with kept_folder(results, "rounding") as d: # each way's model, for the next time where this one does not suffice
        def one(name, steps, rate=None):
            device, precision, env = ways[name]
            out = pathlib.Path(d, f"{name.replace(' ', '_')}.{steps}.{rate}.keras")
            said = out.with_suffix(".json")
            args = [a if a != "0.01" or rate is None else rate for a in base]
            if not said.exists():
                p = subprocess.run([memfit, "train", *args, "--epochs", "100", "--steps", str(steps), "--precision", precision, "--device", device, "--json", "--quiet", "--out", str(out)], capture_output=True,
                                   text=True, timeout=150, env={**os.environ, "OMP_NUM_THREADS": "4", **env})
                if p.returncode:
                    rows[name] = {"error": p.stderr[-200:]}
                    return None
                said.write_text(p.stdout)
            return json.loads(said.read_text())["loss"], weights_of(out)

        def update(name):
            a = one(name, 1)
            if a:
                losses[name], made[name] = [a[0]], a[1]

        if too_late(deadline):
            return None
        start = one("card float32", 1, "1e-30")
        in_parallel([lambda n=n: update(n) for n in ways], 3, deadline)
        ref = made.get("cpu float32")
        for name, w in made.items():
            if start is None or ref is None:
                break
            u, v = w - start[1], ref - start[1]
            good = numpy.isfinite(u) & numpy.isfinite(v)
            rows[name] = {"loss": losses[name], "update_apart": float(f"{numpy.linalg.norm((u - v)[good]) / numpy.linalg.norm(v[good]):.2e}")}
        if any(name not in rows for name in ways): # without the two on the cpu nothing says what rounding does
            return results.not_ended(f"rounding ResNet50: {rows}")
    moved = rows.get("cpu float32, SSE2", {}).get("update_apart", 0)
    first = rows.get("cpu float32", {}).get("loss", [0])[0]
    good = all(n in rows and rows[n].get("update_apart", 1) <= 3 * moved and abs(rows[n]["loss"][0] - first) <= 1e-5 * abs(first) for n in ("card float32", "card float32, own kernels"))
    return results.put("rounding ResNet50", good, rows=rows)
