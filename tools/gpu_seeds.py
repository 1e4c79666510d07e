"""The part seeds of gpu_train.py: the programs S1 to S12 on the card, and what M4 and M16 say of slices and of experiments in one process."""
import math
import random
import struct
import subprocess
import tempfile
import time
import zipfile

from gpu_results import MIB, NOT_BUILT, allocations, in_parallel, program, too_late, train


def slices(memfit, results, nvml, models, deadline):
    """S3, M4: 80 % of the card in one pool, a slice beside it that keeps its share. Nobody else may use the card."""
    tool, case = program(memfit, "s3_limits"), "slices S3, M4"
    if not tool:
        return NOT_BUILT
    if not results.has(case):
        p = subprocess.run(["timeout", str(max(10, int(deadline + 10 - time.time()))), tool, "cuda"], capture_output=True, text=True)
        if p.returncode == 124:
            return results.not_ended(case)
        results.put(case, p.returncode == 0, rc=p.returncode, said=(p.stdout + p.stderr).strip()[-400:])
    return None


def seeds(memfit, results, nvml, models, deadline):
    by_name = {m.stem: str(m) for m in models}

    kept = {} # results that others are compared with, of this run or of an earlier one

    def has_room(case, gib):
        """A card of a few GiB is asked for what it can hold."""
        if nvml.total() >= gib * (1 << 30):
            return True
        print(f"seeds {case}: no case: it takes {gib} GiB, the card has {nvml.total() / (1 << 30):.1f}", flush=True)
        return False

    def run(case, model, *args, check, kept_as=None):
        row = results.seen.get("seeds " + case)
        if results.has("seeds " + case) or model not in by_name or too_late(deadline):
            if kept_as and row and row["good"]:
                kept[kept_as] = row
            return
        rc, j, said, pid = train(memfit, by_name[model], "--data", "synthetic:" + args[0], *args[1:], timeout=max(30, min(120, deadline + 60 - time.time())))
        seen = nvml.peak(pid)
        if rc == -1:
            return results.not_ended("seeds " + case)
        if not j:
            return results.put("seeds " + case, False, rc=rc, error=said)
        good, more = check(j, seen)
        figures = {k: j[k] for k in ("loss", "planned_peak_bytes", "fixed_bytes", "arena_bytes", "pieces", "numerics")}
        results.put("seeds " + case, good and 0 < seen <= j["planned_peak_bytes"] and not allocations(j)["allocations"], nvml_mib=seen // MIB, step_ms=round(j["step_ms"], 3), recomputed=j["recomputed_ops"],
                    **allocations(j), **more, **figures)
        if kept_as:
            kept[kept_as] = j

    def any_result(j, seen):
        return True, {}

    def as_before(name, within):
        def check(j, seen):
            if name not in kept:
                return False, {"loss_differs": "nothing to compare with"}
            d = abs(j["loss"] - kept[name]["loss"]) / (abs(kept[name]["loss"]) + 1e-3)
            return d <= within, {"loss_differs": float(f"{d:.1e}")}
        return check

    def say(case, good, **more):
        results.put("seeds " + case, good, **more)

    def example(case, name, *args):
        """A C example on the card: what it claims must hold."""
        if results.has("seeds " + case) or too_late(deadline):
            return
        if program(memfit, name):
            p = subprocess.run(["timeout", "90", program(memfit, name), *args], capture_output=True, text=True)
            if p.returncode == 124:
                return results.not_ended(f"seeds {case}")
            say(case, p.returncode == 0, rc=p.returncode, said=(p.stdout + p.stderr).strip()[-200:])

    def refused(case, model, *args, words):
        """Must be refused, and the refusal must have these words."""
        if results.has("seeds " + case) or model not in by_name or too_late(deadline):
            return
        rc, j, said, _ = train(memfit, by_name[model], *args)
        say(case, rc in (2, 3, 5) and all(w in said for w in words), rc=rc, said=said[-250:])

    def samples(folder, name, count, kind, *shape, sparse=False):
        """count samples, all with the same random bytes, stored uncompressed, without NumPy: x of that kind ("|u1", "<f8"), y one-hot float32 or a number."""
        def npy(kind, dims):
            head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {dims}, }}".encode()
            head += b" " * (64 - (len(head) + 11) % 64) + b"\n"
            return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head
        size = math.prod(shape)
        one = random.Random(1).randbytes(size) if kind == "|u1" else struct.pack(f"<{size}d", *(i % 17 / 17 for i in range(size)))
        with zipfile.ZipFile(f"{folder}/{name}", "w") as z:
            with z.open(zipfile.ZipInfo("x.npy"), "w", force_zip64=True) as f:
                f.write(npy(kind, (count, *shape)))
                for _ in range(count):
                    f.write(one)
            z.writestr("y.npy", npy("<i4", f"({count},)") + struct.pack("<i", 1) * count if sparse else npy("<f4", (count, 10)) + struct.pack("<10f", 1, *[0] * 9) * count)
        return f"{folder}/{name}"

    def small():
        run("S1: kilobytes beside the fixed cost", "s1", "1000", check=lambda j, s: (j["arena_bytes"] < MIB, {}))
        run("S3: 80 % of the card", "s1", "1000", "--memory", "80%", check=lambda j, s: (j["arena_bytes"] < MIB and j["limit_bytes"] > 0.79 * nvml.total(), {"limit_mib": j["limit_bytes"] // MIB}))
        run("S3: 1 GiB", "s1", "1000", "--memory", "1GiB", check=lambda j, s: (s <= 1 << 30, {}))
        refused("S3: megabytes taken for bytes", "s1", "--data", "synthetic:1000", "--memory", "819", words=["bytes", "819MiB"])

    def examples():
        example("S11: the leak is named", "s11_experiments", "cuda")
        example("S6: released at the last use", "s6_release", "cuda")
        example("S2: growth on every card", "s2_growth")

    def experiments():
        """Ten in one process hold no more of the card than one does, and of the host what the example itself claims."""
        case, tool = "S11, M16: ten experiments in one process", program(memfit, "s11_training")
        if results.has("seeds " + case) or not tool or too_late(deadline):
            return
        peaks, said = [], ""
        for count in ("1", "10"):
            p = subprocess.Popen([tool, count, "cuda"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            said = p.communicate(timeout=150)[0].strip()
            if p.returncode:
                return say(case, False, rc=p.returncode, said=said[-300:])
            peaks.append(nvml.peak(p.pid))
        say(case, peaks[0] > 0 and peaks[1] - peaks[0] <= 4 * MIB, nvml_mib=[p // MIB for p in peaks], said=said[-200:])

    def streamed():
        """S5: uint8 from a file to the card, as many as there are: the same memory. A set for which the limit leaves room stays on the card, so the
        limit is what a plan without that room takes; three times the samples then are not a byte more."""
        case, image = "S5: images of 1024 x 1024 streamed as uint8", 3 << 20
        if results.has("seeds " + case) or "s7" not in by_name or not has_room(case, 7) or too_late(deadline):
            return
        rows, limit = [], 6 << 30
        with tempfile.TemporaryDirectory() as d:
            for count in (96, 96, 288):
                x = samples(d, f"{count}.npz", count, "|u1", 1024, 1024, 3)
                rc, j, said, pid = train(memfit, by_name["s7"], "--data", x, "-b", "32", "--steps", "9", "--epochs", "3", "--memory", str(limit), timeout=150)
                if not j:
                    return say(case, False, rc=rc, limit_mib=limit // MIB, error=said)
                rows.append((nvml.peak(pid), j["planned_peak_bytes"], j))
                limit = rows[0][1] - 96 * image // 2
        planned = [r[1] for r in rows]
        good = all(0 < r[0] <= r[1] for r in rows) and planned[1] == planned[2] <= limit and not allocations(rows[2][2])["allocations"]
        say(case, good, nvml_mib=[r[0] // MIB for r in rows], planned=planned, limit_mib=limit // MIB, step_ms=[round(r[2]["step_ms"], 2) for r in rows])

    def shapes():
        """S8: an axis of size 1 that is missing is added, any other shape is an error that names what was expected and given; float64 is cast."""
        with tempfile.TemporaryDirectory() as d:
            case = "S8: the last axis is missing"
            if not results.has("seeds " + case) and "cnn" in by_name and not too_late(deadline):
                losses = []
                for x in (samples(d, "a.npz", 64, "<f8", 8, 8, sparse=True), samples(d, "b.npz", 64, "<f8", 8, 8, 1, sparse=True)):
                    rc, j, said, _ = train(memfit, by_name["cnn"], "--data", x, "-b", "32", "--steps", "4", "--epochs", "2")
                    losses.append(j["loss"] if j else said)
                say(case, isinstance(losses[0], float) and losses[0] == losses[1], losses=losses)
            if "s9" in by_name:
                refused("S8: another shape is named", "s9", "--data", samples(d, "y.npz", 32, "|u1", 100, 128, 3), "-b", "16", words=["128", "100"])

    def pieces():
        run("S4: S9 as asked", "s9", "64", "-b", "16", "--steps", "6", "--gradient-accumulation", "off", check=any_result, kept_as="s4 s9")
        run("S4: S9 in four pieces", "s9", "64", "-b", "16", "--steps", "6", "--gradient-accumulation", "4", check=as_before("s4 s9", 1e-3))
        run("S12: validation and a last batch", "s9", "100", "-b", "16", "--epochs", "2", "--validation-split", "0.23", check=lambda j, s: (j["validation"] is not None, {}))
        run("S12: validation at batch 64", "s9", "200", "-b", "8", "--steps", "4", "--validation-split", "0.5", "--validation-batch-size", "64", check=lambda j, s: (True, {}))

    def budget():
        if not has_room("S9: as asked", 7):
            return
        run("S9: as asked", "s9", "64", "-b", "32", "--steps", "6", check=any_result, kept_as="s9")
        if "s9" in kept:
            j = kept["s9"]
            limit = j["fixed_bytes"] + int(0.6 * j["arena_bytes"])
            run("S9: in 0.6 of it", "s9", "64", "-b", "32", "--steps", "6", "--memory", str(limit), check=lambda j, s: (s <= limit and as_before("s9", 1e-3)(j, s)[0], {"limit_mib": limit // MIB}))
        run("S10: bfloat16", "s9", "64", "-b", "32", "--steps", "6", "--precision", "mixed_bfloat16",
            check=lambda j, s: (True, {"saved_mib": (kept["s9"]["planned_peak_bytes"] - j["planned_peak_bytes"]) // MIB if "s9" in kept else None}))
        if has_room("S7: batch 256 of 1024 x 1024 in 8 GiB", 9):
            run("S7: batch 256 of 1024 x 1024 in 8 GiB", "s7", "256", "-b", "256", "--steps", "3", "--memory", "8GiB", check=lambda j, s: (s <= 8 << 30, {}))

    def exact():
        if not has_room("S4: ResNet50 as asked", 7):
            return
        run("S4: ResNet50 as asked", "resnet50", "64", "-b", "32", "--steps", "4", check=any_result, kept_as="s4")
        if "s4" in kept and "resnet50" in by_name:
            j = kept["s4"]
            limit = j["fixed_bytes"] + int(0.6 * j["arena_bytes"])
            run("S4: the exact way, in 0.6 of the memory", "resnet50", "64", "-b", "32", "--steps", "4", "--memory", str(limit), "--gradient-accumulation", "off",
                check=lambda j, s: (s <= limit and j["numerics"] != "changed" and as_before("s4", 1e-3)(j, s)[0], {"limit_mib": limit // MIB}))
        run("S4: four pieces, changed mathematics", "resnet50", "64", "-b", "32", "--steps", "4", "--gradient-accumulation", "4", "--allow-changed-numerics",
            check=lambda j, s: (j["numerics"] == "changed" and j["pieces"] == 4, {}))

    in_parallel([streamed, budget, small, pieces, exact, examples, shapes, experiments], 3, deadline)
