#!/usr/bin/env python3
"""Texts as a C table: embed_texts.py OUT.c NAME=FILE... ; NAME= alone is an empty text."""
import sys

out, texts = sys.argv[1], sys.argv[2:]
with open(out, "w") as f:
    f.write('/* Made by tools/embed_texts.py. */\n#include "ops/cuda/cuda_texts.h"\n\n')
    for i, item in enumerate(texts):
        name, file = item.split("=", 1)
        data = open(file, "rb").read() if file else b""
        f.write("static const char text_%d[] = {" % i)
        for k in range(0, len(data), 24):
            f.write("\n    " + ", ".join(str(b if b < 128 else b - 256) for b in data[k : k + 24]) + ",")
        f.write("0};\n")
    f.write("\nconst cuda_text mf_cuda_texts[] = {\n")
    for i, item in enumerate(texts):
        f.write('    {"%s", text_%d},\n' % (item.split("=", 1)[0], i))
    f.write("};\nconst unsigned mf_cuda_text_count = sizeof mf_cuda_texts / sizeof *mf_cuda_texts;\n")
