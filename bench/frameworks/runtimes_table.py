#!/usr/bin/env python3
"""Asks about every model of a folder in every runtime: an answer, or a named reason, and the processor time of each question.

    runtimes_table.py FOLDER... [--for CARD] [--batch-size N]

FOLDER holds .keras, .h5, .json, or .gz files of the test fixtures (a configuration in their second line). MEMFIT names the program
(build/memfit). Exits with 1 when a question has neither answer nor reason.
"""
import argparse
import gzip
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

RUNTIMES = ("memfit", "tensorflow", "torch", "jax")
MEMFIT = os.environ.get("MEMFIT", "build/memfit")


def models(folders, scratch):
    for folder in folders:
        for path in sorted(pathlib.Path(folder).iterdir()):
            if path.suffix in (".keras", ".h5", ".json"):
                yield path.name, str(path)
            elif path.suffix == ".gz":
                file = pathlib.Path(scratch, path.stem + ".json")
                file.write_text(gzip.open(path, "rt").read().splitlines()[1])
                yield path.stem, str(file)


def ask(path, runtime, card, batch, more=()):
    """Models without a size of their own are asked about with one."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    got = subprocess.run([MEMFIT, "plan", path, "--runtime", runtime, "--for", card, "--batch-size", str(batch), "--json", *more], capture_output=True, text=True,
                         check=False)
    if got.returncode == 2 and not more and "is not known" in got.stdout + got.stderr:
        return ask(path, runtime, card, batch, ("--input-shape", "224,224,3"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if got.returncode in (0, 3):
        d = json.loads(got.stdout)
        x = d if runtime == "memfit" else d["in_framework"]
        verdict = {True: "yes", False: "no"}.get(x["fits"], x["fits"])
        return "%s %.2f" % (verdict, x["peak_bytes"] / (1 << 30)), seconds, True
    try:
        reason = json.loads(got.stdout).get("error", {})
        reason = reason.get("message", "") if isinstance(reason, dict) else str(reason)
    except ValueError:
        reason = got.stderr.strip()
    return "exit %d: %s" % (got.returncode, reason.splitlines()[0][:70] if reason else "?"), seconds, got.returncode in (2, 4, 5) and bool(reason)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--for", dest="card", default="rtx-4090")
    parser.add_argument("--batch-size", type=int, default=32)
    a = parser.parse_args()
    times, bad, answers, reasons = [], 0, 0, 0
    print("%-28s" % ("GiB of %s, batch %d" % (a.card, a.batch_size)) + "".join("%-16s" % r for r in RUNTIMES) + "slowest s")
    with tempfile.TemporaryDirectory() as scratch:
        for name, path in models(a.folders, scratch):
            row, slowest = [], 0.0
            for runtime in RUNTIMES:
                text, seconds, known = ask(path, runtime, a.card, a.batch_size)
                row.append(text)
                slowest = max(slowest, seconds)
                times.append(seconds)
                bad += not known
                answers += not text.startswith("exit")
                reasons += text.startswith("exit") and known
            print("%-28s" % name + (" ".join("%-15s" % t for t in row) if not row[0].startswith("exit") else row[0]) + "  %.2f" % slowest, flush=True)
    times.sort()
    print("\n%d answers, %d named reasons, %d neither; processor time: median %.2f s, 95th %.2f s, most %.2f s" % (
        answers, reasons, bad, times[len(times) // 2], times[int(0.95 * (len(times) - 1))], times[-1]))
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
