#!/usr/bin/env python3
"""Checks the house of docs/design.md: which folder of src/ may include which, and which may use an outside library.

Also: no two files share a name, no file passes 1,200 lines, public headers include only public headers. A file of code (C, CUDA,
Python, JavaScript, shell) with more than 600 lines says in its head that it is long because ... OpenMP is optional: only
oneDNN's adapter may include it unconditionally.
"""
import collections
import pathlib
import re
import sys

# Every folder may include itself. What it may include beside that, from the top of the house down.
MAY = {
    "base": "",
    "trace": "base",
    "device": "base trace",
    "pool": "base trace device",
    "file": "base",
    "graph": "base",
    "model": "base file graph",
    "pack": "base",
    "plan": "base graph pack",
    "ops": "base trace device graph plan",
    "data": "base file graph ops",
    "train": "base trace device pool file graph model pack plan ops data",
    "answer": "base trace device pool file graph model pack plan ops data train",
    "diagnose": "base trace device pool file graph model pack plan ops data train answer",
    "govern": "base trace device",
    "cli": "base answer",
}
# One library, one adapter: headers from outside that only these places may include.
ADAPTERS = {"oneapi/": ["src/ops/cpu/dnn/"], "zlib.h": ["src/file/", "src/trace/"], "jpeglib.h": ["src/file/picture_jpeg.c"], "png.h": ["src/file/picture_png.c"], "webp/": ["src/file/picture_webp.c"], "dlfcn.h": ["src/device/", "src/pool/torch.c", "src/govern/preload_find.c"]}
MANY_LINES, MOST_LINES = 600, 1200
CODE = {".c", ".h", ".cu", ".py", ".js", ".sh"}
root = pathlib.Path(__file__).resolve().parent.parent
bad = []
names = collections.defaultdict(list)


def head_of(text):
    """The comment or documentation a file begins with, after a line that names its interpreter."""
    body = re.sub(r"\A#!.*\n", "", text)
    match = re.match(r'/\*.*?\*/|""".*?"""|(?:#.*\n)+|(?://.*\n)+', body, re.S)
    return match.group() if match else ""


def check_length(rel, text):
    """Counts lines; a long file explains itself in its first comment."""
    lines = text.count("\n")
    says_why = re.search(r"\b(is long|long because)\b", head_of(text))
    if lines > MOST_LINES:
        bad.append(f"{rel}: {lines} lines; the limit is {MOST_LINES:,}")
    elif lines > MANY_LINES and not says_why:
        bad.append(f"{rel}: {lines} lines; over {MANY_LINES} its head says \"long because ...\", or it is cut")


for place in ["src", "include", "tests", "tools", "bench", "python", "examples"]:
    for path in sorted(root.glob(f"{place}/**/*")):
        script = not path.suffix and path.is_file() and path.read_bytes()[:2] == b"#!"
        if (path.suffix in CODE or script) and "fixtures" not in path.parts:
            check_length(path.relative_to(root), path.read_text())
for path in sorted(list(root.glob("src/**/*.[ch]")) + list(root.glob("include/**/*.h"))):
    rel = path.relative_to(root)
    text = path.read_text()
    names[rel.parts[0], path.name].append(str(rel))  # memfit/plan.h and plan/plan.h may both exist
    if rel.parts[0] == "include":
        for inc in re.findall(r'#include\s+"([^"]+)"', text):
            if not inc.startswith("memfit/"):
                bad.append(f"{rel}: a public header may include only public headers, not {inc}")
        continue
    layer = rel.parts[1]
    if layer not in MAY:
        bad.append(f"{rel}: folder src/{layer} is not in the list of layers")
        continue
    allowed = {layer, *MAY[layer].split()}
    for inc in re.findall(r'#include\s+"([^"]+)"', text):
        top = inc.split("/")[0]
        if top == "memfit":
            continue
        if "/" not in inc:
            bad.append(f'{rel}: write "{layer}/{inc}", the path from src/')
        elif top not in allowed:
            bad.append(f"{rel}: {layer} may not include {inc}")
    if "<omp.h>" in text and not str(rel).startswith("src/ops/cpu/dnn/") and "#ifdef _OPENMP\n#include <omp.h>" not in text:
        bad.append(f"{rel}: <omp.h> only under #ifdef _OPENMP; the wheel is built without it")
    for inc in re.findall(r"#include\s+<([^>]+)>", text):
        for header, places in ADAPTERS.items():
            if inc.startswith(header) and not any(str(rel).startswith(place) for place in places):
                bad.append(f"{rel}: <{inc}> belongs to {' or '.join(places)}")
for (_, name), where in names.items():
    if len(where) > 1:
        bad.append(f"the name {name} is used twice: {', '.join(where)}")
for line in bad:
    print(line, file=sys.stderr)
sys.exit(1 if bad else 0)
