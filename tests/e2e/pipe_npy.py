#!/usr/bin/env python3
"""Writes the arrays of a .npz file to standard output as NumPy arrays in turns, N samples at a time: pipe_npy.py FILE N [NAME...]"""
import ast
import struct
import sys
import zipfile

archive, step, names = zipfile.ZipFile(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or ["x", "y"]
arrays = []
for name in names:
    raw = archive.read(name + ".npy")
    length = struct.unpack("<H", raw[8:10])[0]
    head = ast.literal_eval(raw[10:10 + length].decode())
    data = raw[10 + length:]
    arrays.append((head["descr"], head["shape"], data, len(data) // head["shape"][0]))
count = arrays[0][1][0]
for at in range(0, count, step):
    n = min(step, count - at)
    for descr, shape, data, size in arrays:
        text = repr({"descr": descr, "fortran_order": False, "shape": (n,) + tuple(shape[1:])}).encode() + b"\n"
        sys.stdout.buffer.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data[at * size:(at + n) * size])
