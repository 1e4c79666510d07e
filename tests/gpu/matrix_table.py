"""The table of tests/gpu/matrix.sh: matrix_table.py FOLDER."""
import glob, json, os, sys

folder, LIMIT = sys.argv[1], 8 << 30
sampled = json.load(open(folder + "/nvml.json"))
print("NVML asked %(samples)d times, every %(median_ms).1f ms in the median, %(p99_ms).1f at 99 %%, %(longest_ms).0f at most" % sampled)
bad, plain = 0, {}
for path in glob.glob(folder + "/m-*-plain.out"):
    try:
        r = json.loads(open(path).read().strip().split("\n")[-1])
        plain[r["case"]] = r["end"] - r["begin"]
    except ValueError:
        pass
for path in sorted(glob.glob(folder + "/m-*.out")):
    name = os.path.basename(path)[2:-4]
    try:
        r = json.loads(open(path).read().strip().split("\n")[-1])
    except ValueError:
        error = open(path[:-4] + ".err", errors="replace").read()[-300:]
        print(name, "FAILED:", error)
        bad += 1
        continue
    if r["how"] == "plain":
        print("%-20s without a limit: 200 steps %.2f s, NVML %.0f MiB" % (name, r["end"] - r["begin"], sampled["processes"].get(str(r["pid"]), [0])[0] / 2**20))
        continue
    seen, peak = r["seen"], sampled["processes"].get(str(r["pid"]), [0, 0])
    wrong = {k: v for k, v in seen.items() if v != LIMIT}
    named = "no report"
    try:
        report = json.load(open(path[:-4] + ".json"))
        denied = report["denied"]  # a program that went on may have got the same bytes later
        named = "; ".join("%.2f %% of %.2f GiB named" % (100 * sum(o["bytes"] for o in d["owners"]) / d["in_use_bytes"], d["in_use_bytes"] / 2**30) for d in denied[-1:]) or "no refusal"
        if not denied and report.get("held_bytes"):
            named += "; held at most %.2f GiB, %.2f %% of it named" % (report["held_bytes"] / 2**30, 100 * sum(o["bytes"] for o in report["held"]) / report["held_bytes"])
    except (OSError, ValueError):
        pass
    good = not wrong and 0 < peak[0] <= LIMIT and r.get("steps") == 200 and r["statistics"] and r["goes_on"]
    bad += not good
    print("%-20s %s total %s NVML %.0f MiB in %d samples, 200 steps %.2f s%s, statistics %s, goes on %s; %s; %s%s" % (
        name, "good" if good else "BAD ", "exactly 8 GiB in %d ways" % len(seen) if not wrong else wrong, peak[0] / 2**20, peak[1], r["end"] - r["begin"], " (without a limit %.2f)" % plain[r["case"]] if r["case"] in plain else "", r["statistics"], r["goes_on"],
        r["error"], named, ", pool %.2f GiB, error after %.1f s" % (r["pool"] / 2**30, r["seconds_to_error"]) if "pool" in r else ""))
print("bad:", bad)
