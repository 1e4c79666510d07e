#!/usr/bin/env python3
"""Where the members of public structs lie: what a program that was compiled against an older header relies on.

    tools/check_layout.py [CC]            checks the headers against every table in tests/fixtures/compat/layout-*.txt
    tools/check_layout.py --write [CC]    writes the table of this version (before its release: members may still move)

A table has a line for each member, "struct.member offset bytes", and one for each struct without a `size` in front, whose own size may
never change, "struct bytes". Members may be added behind; none may move, change its size or go.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent.parent
COMPAT = HERE / "tests/fixtures/compat"


def version():
    return ".".join(re.search(r"version: '([0-9.]+)'", (HERE / "meson.build").read_text(encoding="utf-8")).group(1).split(".")[:2])


def members(body):
    """Names of a struct's members; of a struct or union inside it, its own name alone."""
    while re.search(r"\{[^{}]*\}", body):
        body = re.sub(r"\b(?:struct|union)\s*\w*\s*\{[^{}]*\}", "int", body)
    for declaration in body.split(";"):
        pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", declaration)
        if pointer:
            yield pointer.group(1)
            continue
        for part in re.sub(r"\[[^\]]*\]", "", declaration).split(","):
            found = re.search(r"(\w+)\s*$", part.strip())
            if found:
                yield found.group(1)


def structs():
    """Header by header: name and members of every public struct."""
    for path in sorted((HERE / "include/memfit").glob("*.h")):
        text = re.sub(r"/\*.*?\*/|//[^\n]*|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", " ", path.read_text(encoding="utf-8"), flags=re.S | re.M)
        for found in re.finditer(r"typedef struct (\w+)\s*\{(.*?)\}\s*(\w+)\s*;", text, flags=re.S):
            if found.group(1) == found.group(3):
                yield found.group(1), list(members(found.group(2)))


def compiled(cc, lines, run):
    """A program on the public headers; what it prints, or what the compiler says against it."""
    headers = "".join('#include "memfit/%s"\n' % p.name for p in sorted((HERE / "include/memfit").glob("*.h")))
    source = "#include <stddef.h>\n#include <stdio.h>\n" + headers + "#define AT(s, m) offsetof(s, m), sizeof ((s *)0)->m\n"
    with tempfile.TemporaryDirectory() as folder:
        path, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
        pathlib.Path(path).write_text(source + ("int main(void)\n{\n%s\n    return 0;\n}\n" if run else "%s\n") % "\n".join(lines), encoding="utf-8")
        done = subprocess.run([*cc.split(), "-std=gnu11", "-I", str(HERE / "include"), path, *(["-o", program] if run else ["-fsyntax-only"])],
                              stderr=subprocess.PIPE, encoding="utf-8", check=False)
        if done.returncode or not run:
            return done.returncode, done.stderr
        return 0, subprocess.run([program], stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout


def write(cc):
    lines = []
    for name, names in structs():
        if names[0] != "size":
            lines.append('    printf("%s %%zu\\n", sizeof(%s));' % (name, name))
        lines += ['    printf("%s.%s %%zu %%zu\\n", AT(%s, %s));' % (name, m, name, m) for m in names]
    status, out = compiled(cc, lines, True)
    if status:
        sys.exit(out)
    path = COMPAT / ("layout-%s.txt" % version())
    path.write_text(out, encoding="utf-8")
    print("%s: %d lines" % (path.relative_to(HERE), len(lines)))


def check(cc):
    tables = sorted(COMPAT.glob("layout-*.txt"))
    failed = not tables
    for table in tables:
        lines = []
        for line in table.read_text(encoding="utf-8").splitlines():
            what, *numbers = line.split()
            struct, _, member = what.partition(".")
            if member:
                test = "offsetof(%s, %s) == %s && sizeof ((%s *)0)->%s == %s" % (struct, member, numbers[0], struct, member, numbers[1])
            else:
                test = "sizeof(%s) == %s" % (struct, numbers[0])
            lines.append('_Static_assert(%s, "%s is not where %s has it");' % (test, what, table.name))
        status, said = compiled(cc, lines, False)
        if status:
            failed = True
            print("\n".join(line for line in said.splitlines() if "error:" in line), file=sys.stderr)
            print("layout: programs compiled against %s would read and write the wrong bytes" % table.stem[len("layout-"):], file=sys.stderr)
        else:
            print("layout: %d lines of %s hold" % (len(lines), table.name))
    missing = {n for n, _ in structs()} - {line.split()[0].split(".")[0] for t in tables for line in t.read_text(encoding="utf-8").splitlines()}
    if missing:
        failed = True
        print("layout: %s in no table: tools/check_layout.py --write" % ", ".join(sorted(missing)), file=sys.stderr)
    return failed


if __name__ == "__main__":
    words = [w for w in sys.argv[1:] if w != "--write"]
    compiler = words[0] if words else os.environ.get("CC", "cc")
    sys.exit(write(compiler) if "--write" in sys.argv else check(compiler))
