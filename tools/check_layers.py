#!/usr/bin/env python3
"""Checks the layer rule: a folder of src/ may include only itself and the folders before it in ORDER.

Also: no two files share a name, and no C file passes 1,200 lines.
"""
import collections
import pathlib
import re
import sys

ORDER = ["base", "device", "pool", "graph", "model", "plan", "ops", "data", "train", "report", "diagnose", "govern", "cli"]
ONLY = {"govern": {"base", "device", "pool", "govern"}}
root = pathlib.Path(__file__).resolve().parent.parent
bad = []
names = collections.defaultdict(list)
for path in sorted(list(root.glob("src/**/*.[ch]")) + list(root.glob("include/**/*.h"))):
    rel = path.relative_to(root)
    text = path.read_text()
    names[rel.parts[0], path.name].append(str(rel))  # memfit/plan.h and plan/plan.h may both exist
    lines = text.count("\n")
    if lines > 1200:
        bad.append(f"{rel}: {lines} lines; the limit is 1,200")
    if rel.parts[0] == "include":
        for inc in re.findall(r'#include\s+"([^"]+)"', text):
            if not inc.startswith("memfit/"):
                bad.append(f"{rel}: a public header may include only public headers, not {inc}")
        continue
    layer = rel.parts[1]
    if layer not in ORDER:
        bad.append(f"{rel}: folder src/{layer} is not in the list of layers")
        continue
    allowed = ONLY.get(layer, set(ORDER[: ORDER.index(layer) + 1]))
    for inc in re.findall(r'#include\s+"([^"]+)"', text):
        top = inc.split("/")[0]
        if top == "memfit":
            continue
        if "/" not in inc:
            bad.append(f'{rel}: write "{layer}/{inc}", the path from src/')
        elif top not in allowed:
            bad.append(f"{rel}: {layer} may not include {inc}")
for (_, name), where in names.items():
    if len(where) > 1:
        bad.append(f"the name {name} is used twice: {', '.join(where)}")
for line in bad:
    print(line, file=sys.stderr)
sys.exit(1 if bad else 0)
