#!/usr/bin/env python3
"""What the documentation points at must be there: links between pages, and paths, files and commands of make in `code`.
Every folder of src/ has its row in docs/design.md, every page of docs/ is reached from README.md. Exit status 1 names
each place that does not hold."""
import os
import re
import subprocess
import sys

files = subprocess.check_output(["git", "ls-files"], text=True).split()
folders = {os.path.dirname(f) for f in files}
folders |= {os.path.dirname(d) for d in folders} | {os.path.dirname(os.path.dirname(d)) for d in folders}
there = set(files) | folders
names = {os.path.basename(f) for f in files}
targets = set(re.findall(r"^([a-z-]+):", open("Makefile").read(), re.M))
bad = []


def link_of(page, target):
    return os.path.normpath(os.path.join(os.path.dirname(page), target))


links = {}
for page in [f for f in files if f.endswith(".md")]:
    text = open(page).read()
    links[page] = {link_of(page, t) for t in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in t}
    bad += [(page, "no such file: " + t) for t in sorted(links[page] - there)]
    for code in re.findall(r"`([^`\n]+)`", text):
        first = code.split()[0].rstrip("/")
        if re.match(r"(src|tests|tools|docs|bench|examples|include)/[\w./-]+$", first):
            built = first.startswith(("bench/", "examples/")) and first + ".c" in there
            if first not in there and not built:
                bad.append((page, "no such file: " + first))
        elif re.match(r"[\w-]+\.(c|h|py|sh|md)$", code) and code not in names:
            bad.append((page, "no file is called " + code))
        elif re.match(r"make [a-z-]+$", code) and code[5:] not in targets:
            bad.append((page, "no target of make: " + code[5:]))

reached, todo = set(), ["README.md"]
while todo:
    page = todo.pop()
    if page not in reached and page in links:
        reached.add(page)
        todo += sorted(links[page])
bad += [(p, "no page leads here from README.md") for p in sorted(links) if p.startswith("docs/") and p not in reached]

design = open("docs/design.md").read()
for folder in sorted({f.split("/")[1] for f in files if f.startswith("src/") and f.count("/") > 1}):
    if "| `%s` |" % folder not in design:
        bad.append(("docs/design.md", "src/%s has no row in the table of layers" % folder))

for place, what in bad:
    print("%s: %s" % (place, what))
sys.exit(1 if bad else 0)
