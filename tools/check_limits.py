#!/usr/bin/env python3
"""Holds `memfit train` to what it says of memory, from outside:

    python tools/check_limits.py build/memfit MODEL... [--batch 8,32] [--factors 1.05,1.3,2] [--options "--validation-split 0.34"]
    python tools/check_limits.py build/memfit MODEL... --sweep 1.03
    python tools/check_limits.py build/memfit --draw 60 [--seed 1] [--folder DIR] [--isa sse2,avx2,avx512]      with real Keras's Python

--options are train's alone: data, writers, nothing that changes the plan. --draw takes models that tools/draw_models.py draws instead.

For each model, batch and set of instructions: a refused run, at the limit that it says would suffice, at multiples of that, and at the
least that `memfit plan` says would suffice. Never is the process (RssAnon + RssShmem, watched from start to end by tests/e2e/held.c) above its limit,
refused runs included; no step allocates; the arena used is the arena planned; and what `memfit plan` admits `memfit train` runs.
With --sweep limits grow by that factor instead, from the least on until they are twice the first that trains: from a twentieth above that one
on, and wherever a refusal before named as much or less, none is refused.
Data is synthetic. One line a run; exit status: how many runs broke a promise.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ANSWER = 35 << 16  # with less beside the bare process, a refusal that says what would suffice may be above its limit


def said_need(err, words="needs"):
    m = re.search(words + r" ([\d.]+) (bytes|KiB|MiB|GiB)", err)
    return int(float(m.group(1)) * UNITS[m.group(2)]) if m else None


class Checker:
    def __init__(self, program, held, steps, isa):
        self.program, self.held, self.steps, self.broken, self.runs = program, held, steps, 0, 0
        self.env = dict(os.environ, **({"MEMFIT_ISA": isa} if isa else {}))
        self.isa = isa or ""
        self.file = tempfile.NamedTemporaryFile()
        self.least = self.watch([program, "--version"])[3] + ANSWER  # of the first limit: libraries take 1 to 4 MB before main() begins

    def watch(self, command):
        """Runs it; exit status, standard output, standard error, the most it held."""
        p = subprocess.run([self.held, self.file.name] + command, capture_output=True, text=True, env=self.env, timeout=1800)
        with open(self.file.name) as f:
            return p.returncode, p.stdout, p.stderr, int(f.read().split()[0])

    def train(self, model, batch, limit, options):
        command = [self.program, "train", model, "--data", f"synthetic:{3 * batch}", "--batch-size", str(batch), "--steps", str(self.steps),
                   "--threads", "2", "--quiet", "--json", "--memory", str(limit)] + options
        status, out, err, peak = self.watch(command)
        wrong = []
        if peak > limit:
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
        p = subprocess.run([self.program, "plan", model, "--batch-size", str(batch), "--threads", "2", "--quiet", "--memory", str(limit)],
                           capture_output=True, text=True, env=self.env)
        return p.returncode, p.stdout + p.stderr

    def one(self, model, batch, limit, options, must_run=""):
        status, err, peak, wrong = self.train(model, batch, limit, options)
        planned, said = self.plan(model, batch, limit)
        if planned not in (0, 3):
            wrong.append(f"plan: exit {planned}")
        if status == 3 and (must_run or planned == 0):
            wrong.append((f"{must_run}, " if must_run else "") + ("plan admits, " if planned == 0 else "") + "train refuses: " + err.strip().split("\n")[0])
        self.runs += 1
        self.broken += bool(wrong)
        name = os.path.basename(model)
        print(f"{name:28} {self.isa:6} batch {batch:4} limit {limit:11} train {status} plan {planned} held {peak / limit:6.3f}  {'; '.join(wrong) or 'ok'}", flush=True)
        return status, err, said

    def model(self, model, batch, factors, options):
        limit = self.least
        status, err, said = self.one(model, batch, limit, options)
        while status == 3 and not said_need(err):  # not enough to find out what would suffice
            limit = max(said_need(err, "at least") or 0, limit * 5 // 4)
            status, err, said = self.one(model, batch, limit, options)
        need = said_need(err) if status == 3 else limit
        least = said_need(said, "at least") if status == 3 else None  # as `memfit plan` sees it
        if status == 3:
            self.one(model, batch, (limit + need) // 2, options)
            self.one(model, batch, need, options, "train says it suffices")
        if least:
            self.one(model, batch, least, options)
        for factor in factors:
            self.one(model, batch, int(need * factor), options, "more than suffices")

    def sweep(self, model, batch, factor, options):
        limit, first, named = self.least, None, None
        while limit <= (2 * first if first else 64 << 30):
            must = "less trains" if first and limit >= first * 21 // 20 else ""
            must = "a refusal named as much" if named and limit >= named else must
            status, err, _ = self.one(model, batch, limit, options, must)
            if status == 0:
                first = first or limit
            need = said_need(err) if status == 3 else None
            named = min(need, named or need) if need else named
            limit = int(limit * factor)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--batch", default="8,32")
    parser.add_argument("--factors", default="1.05,1.3,2")
    parser.add_argument("--sweep", type=float, help="many limits, each so many times the one before")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--options", default="")
    parser.add_argument("--isa", default="", help="sets of instructions, one after the other (MEMFIT_ISA)")
    parser.add_argument("--held", help="the program that watches; $HELD_PROGRAM, or tests/held beside the program")
    parser.add_argument("--draw", type=int, default=0, help="how many models to draw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="of the models drawn, those whose name has one of these parts, separated by commas")
    parser.add_argument("--first", type=int, default=1, help="the number of the first model drawn to run: goes on where an earlier run ended")
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "memfit-drawn"), help="where drawn models are kept")
    a = parser.parse_args()
    held = a.held or os.environ.get("HELD_PROGRAM") or os.path.join(os.path.dirname(os.path.abspath(a.program)), "tests", "held")
    subjects = [(model, int(batch)) for model in a.models for batch in a.batch.split(",")]
    if a.draw:
        from draw_models import draw_models
        drawn = draw_models(a.folder, a.seed, a.draw)[a.first - 1:]
        subjects += [(m, b) for m, b in drawn if any(part in os.path.basename(m) for part in a.only.split(","))]
    checkers = [Checker(a.program, held, a.steps, isa) for isa in a.isa.split(",")]
    for model, batch in subjects:
        for checker in checkers:
            if a.sweep:
                checker.sweep(model, batch, a.sweep, a.options.split())
            else:
                checker.model(model, batch, [float(f) for f in a.factors.split(",")], a.options.split())
    broken = sum(c.broken for c in checkers)
    print(f"{sum(c.runs for c in checkers)} runs, {broken} broke a promise")
    return min(broken, 100)


if __name__ == "__main__":
    sys.exit(main())
