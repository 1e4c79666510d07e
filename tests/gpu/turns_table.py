"""The table of tests/gpu/turns.sh: turns_table.py FOLDER TURNS."""
import json, sys

folder, turns = sys.argv[1], sys.argv[2]
r = {n: json.loads(open(f"{folder}/{n}.out").read().strip().split("\n")[-1]) for n in ("a", "b", "r1", "r2")}
j = {n: json.load(open(f"{folder}/{n}.json")) for n in "ab"}
equal = True
for job, ref in (("a", "r1"), ("b", "r2")):
    x, y = r[job], r[ref]
    equal &= x["hash"] == y["hash"] and x["steps"] == y["steps"]
    print("%s: %d steps, losses and memory bit-equal to those alone: %s; median step %.2f ms, alone %.2f; longest %s; reserved %d MiB; suspended %d times, %.1f s away, %.1f s of it changing; %s" % (
        job, x["steps"], x["hash"] == y["hash"], x["median_ms"], y["median_ms"], x["longest"], x["reserved_mib"], j[job]["suspended"], j[job]["away_seconds"], j[job]["switching_seconds"],
        j[job]["turns_refused"] or "never refused"))
# From the first call to the card on: contexts and first tensors, too. The second job makes its tensors in its turn; by pace that is held against the turns.
alone, wall = sum(r[k]["end"] - r[k]["go"] for k in ("r1", "r2")), max(r[k]["end"] for k in "ab") - min(r[k]["go"] for k in "ab")
steps, begins = sum(r[k]["end"] - r[k]["begin"] - j[k]["away_seconds"] for k in "ab"), r["a"]["begin"] - r["a"]["go"]
print("by turns %.2f s; alone, one job after the other, %.2f s (%.2f of it steps): %.1f %% of the throughput alone; by their pace in their own turns %.2f s (%.2f of it steps): %.1f %%" % (
    wall, alone, sum(r[k]["end"] - r[k]["begin"] for k in ("r1", "r2")), 100 * alone / wall, steps + begins, steps, 100 * (steps + begins) / wall))
switches = sum(j[k]["suspended"] for k in "ab")
each = sum(j[k]["switching_seconds"] for k in "ab") / max(1, switches)
print("turns %s: %d suspensions, %.2f s each with coming back: turns of 30 s give %.1f %%, of 60 s %.1f %%" % (turns, switches, each, 100 * 30 / (30 + each), 100 * 60 / (60 + each)))
print("GOOD" if equal and min(alone, steps + begins) >= 0.85 * wall and switches > 1 else "BAD")
