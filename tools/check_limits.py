#!/usr/bin/env python3
"""Holds `memfit train` to what it says of memory, from outside:

    python tools/check_limits.py build/memfit MODEL... [--batch 8,32] [--factors 1.05,1.3,2] [--options "--validation-split 0.34"]

--options are train's alone: data, writers, nothing that changes the plan.

For each model and batch: the limit that a refused run says would suffice suffices; at that limit and at multiples of it the process
(RssAnon + RssShmem of /proc/PID/status, read all the time, refused runs too) never is above its limit, no step allocates, the arena
used is the arena planned, and what `memfit plan` admits `memfit train` runs. Data is synthetic. One line a run; exit status: how many
runs broke a promise.
"""
import argparse
import json
import os
import re
import subprocess
import sys

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def watch(command):
    """Runs it; exit status, standard output, standard error, the most it held."""
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = 0
    while p.poll() is None:
        try:
            with open(f"/proc/{p.pid}/status") as f:
                held = sum(int(n) * 1024 for n in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", f.read(), re.M))
            peak = max(peak, held)
        except (FileNotFoundError, ProcessLookupError):
            break
    out, err = p.communicate()
    return p.returncode, out, err, peak


def said_need(err, words="needs"):
    m = re.search(words + r" ([\d.]+) (bytes|KiB|MiB|GiB)", err)
    return int(float(m.group(1)) * UNITS[m.group(2)]) if m else None


class Checker:
    def __init__(self, program, steps, refused):
        self.program, self.steps, self.refused, self.broken, self.runs = program, steps, refused, 0, 0

    def train(self, model, batch, limit, options):
        command = [self.program, "train", model, "--data", f"synthetic:{3 * batch}", "--batch-size", str(batch), "--steps", str(self.steps),
                   "--threads", "2", "--quiet", "--json", "--memory", str(limit)] + options
        status, out, err, peak = watch(command)
        wrong = []
        if peak > limit * (self.refused if status == 3 else 1):
            wrong.append(f"held {peak}, {peak - limit} above the limit")
        if status == 0:
            r = json.loads(out)
            if r["measured_peak_bytes"] > r["planned_peak_bytes"]:
                wrong.append(f"measured {r['measured_peak_bytes']} of {r['planned_peak_bytes']} planned")
            if r["allocations_in_steps"]:
                wrong.append(f"{r['allocations_in_steps']} allocations in steps")
            if r["arena_used_bytes"] != r["arena_bytes"]:
                wrong.append(f"arena used {r['arena_used_bytes']} of {r['arena_bytes']}")
        elif status != 3:
            wrong.append(f"exit {status}: {err.strip()[:200]}")
        return status, err, peak, wrong

    def plan(self, model, batch, limit):
        return subprocess.run([self.program, "plan", model, "--batch-size", str(batch), "--threads", "2", "--quiet", "--json", "--memory", str(limit)],
                              capture_output=True).returncode

    def one(self, model, batch, limit, options, must_run):
        status, err, peak, wrong = self.train(model, batch, limit, options)
        planned = self.plan(model, batch, limit)
        if planned not in (0, 3):
            wrong.append(f"plan: exit {planned}")
        if status == 3 and (must_run or planned == 0):
            wrong.append(("said to suffice, " if must_run else "") + ("plan admits, " if planned == 0 else "") + "train refuses: " + err.strip().split("\n")[0])
        self.runs += 1
        self.broken += bool(wrong)
        name = os.path.basename(model)
        print(f"{name:24} batch {batch:5} limit {limit:12} train {status} plan {planned} held {peak / limit:6.3f}  {'; '.join(wrong) or 'ok'}", flush=True)
        return status, err

    def model(self, model, batch, factors, options):
        limit = 3 << 20
        status, err = self.one(model, batch, limit, options, False)
        while status == 3 and said_need(err, "at least"):  # not enough to find out what would suffice
            limit = max(said_need(err, "at least"), limit * 5 // 4)
            status, err = self.one(model, batch, limit, options, False)
        need = said_need(err) if status == 3 else limit
        if not need:
            self.broken += 1
            print(f"{model}: no need is named: {err.strip()}")
            return
        if status == 3:
            self.one(model, batch, need, options, True)
        for factor in factors:
            self.one(model, batch, int(need * factor), options, True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--batch", default="8,32")
    parser.add_argument("--factors", default="1.05,1.3,2")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--options", default="")
    parser.add_argument("--refused", type=float, default=1, help="times its limit that a refused run may hold")
    a = parser.parse_args()
    checker = Checker(a.program, a.steps, a.refused)
    for model in a.models:
        for batch in a.batch.split(","):
            checker.model(model, int(batch), [float(f) for f in a.factors.split(",")], a.options.split())
    print(f"{checker.runs} runs, {checker.broken} broke a promise")
    return min(checker.broken, 100)


if __name__ == "__main__":
    sys.exit(main())
