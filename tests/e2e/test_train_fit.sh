#!/bin/bash
# test_train_fit.sh: epochs, validation, weights of classes and samples, schedules and callbacks give the numbers Keras's fit() gave
# for the same files: tests/fixtures/fit, made by tools/compare_fit.py --fixtures. Every number of every epoch to 1e-4, and the loss
# of what --out holds.
set -u
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
python3 - "$MEMFIT" "$MEMFIT_SOURCE/tests/fixtures/fit" "$t" <<'END'
import csv, json, os, subprocess, sys
program, fixtures, folder = sys.argv[1:]


def near(a, b):
    return abs(a - b) <= 1e-4 * max(abs(b), 1e-3)


def run(*command):
    r = subprocess.run((program,) + command, capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"FAIL: {' '.join(command)}: exit status {r.returncode}: {r.stderr}")
    return r.stdout


failed = 0
for case in json.load(open(os.path.join(fixtures, "cases.json"))):
    log, out, classes = (os.path.join(folder, n) for n in ("log.csv", "out.keras", "classes.json"))
    data = os.path.join(fixtures, case["data"])
    json.dump(case["classes"], open(classes, "w"))
    options = [classes if o == "CLASSES" else os.path.join(fixtures, o[5:]) if o.startswith("HELD:") else o for o in case["options"]]
    run("train", os.path.join(fixtures, case["model"]), "--data", data, "--batch-size", "32", "--epochs", str(case["epochs"]), "--no-shuffle",
        "--threads", "1", "--quiet", "--log-csv", log, "--out", out, *options)
    rows = list(csv.DictReader(open(log, newline="")))
    wrong = [f"{len(rows)} epochs"] if len(rows) != len(case["history"]["loss"]) else []
    for key, values in case["history"].items():
        wrong += [f"{key} of epoch {e}: {row[key]}, Keras {v}" for e, (row, v) in enumerate(zip(rows, values)) if not near(float(row[key]), v)]
    after = json.loads(run("evaluate", out, "--data", data, "--batch-size", "32", "--threads", "1", "--json"))["loss"]
    if not near(after, case["after"]):
        wrong.append(f"loss afterwards {after}, Keras {case['after']}")
    if wrong:
        print(f"FAIL: {case['name']}: {'; '.join(wrong[:3])}")
        failed += 1
print("fit: all good" if not failed else f"fit: {failed} cases differ")
sys.exit(failed)
END
