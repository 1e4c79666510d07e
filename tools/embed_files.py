#!/usr/bin/env python3
"""Files as constants of C, each ended by 0: embed_files.py OUT.c SYMBOL=FILE..."""
import sys

out, items = sys.argv[1], sys.argv[2:]
with open(out, "w") as f:
    f.write("/* Made by tools/embed_files.py. */\n")
    for item in items:
        symbol, file = item.split("=", 1)
        data = open(file, "rb").read()
        f.write("extern const char %s[];\nconst char %s[] = {" % (symbol, symbol))
        for k in range(0, len(data), 24):
            f.write("\n    " + ", ".join(str(b if b < 128 else b - 256) for b in data[k : k + 24]) + ",")
        f.write("0};\n")
