#!/usr/bin/env python3
"""Compares the symbols libmemfit.so exports with docs/abi.txt. `--write` brings the list up to date."""
import pathlib
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
args = [a for a in sys.argv[1:] if a != "--write"]
lib = args[0] if args else str(root / "build/libmemfit.so")
out = subprocess.run(["nm", "-D", "--defined-only", lib], check=True, capture_output=True, text=True).stdout
have = sorted(line.split()[2] for line in out.splitlines() if len(line.split()) == 3)
listfile = root / "docs/abi.txt"
if "--write" in sys.argv:
    listfile.write_text("".join(f"{s}\n" for s in have))
    sys.exit(0)
want = listfile.read_text().split()
new, gone = sorted(set(have) - set(want)), sorted(set(want) - set(have))
for s in new:
    print(f"exported but not in docs/abi.txt: {s}  (tools/check_abi.py --write, if it is meant)", file=sys.stderr)
for s in gone:
    print(f"in docs/abi.txt but no longer exported: {s}", file=sys.stderr)
sys.exit(1 if new or gone else 0)
