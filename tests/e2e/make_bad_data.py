#!/usr/bin/env python3
"""Writes small data sets with one fault each: make_bad_data.py FOLDER. Needs nothing but Python."""
import os
import struct
import sys
import warnings
import zipfile

folder = sys.argv[1]
FORMATS = {"<f4": "f", "<f8": "d", "<i4": "i", "<i8": "q", "|u1": "B", "<f2": "e"}


def npy(descr, shape, values):
    head = "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }" % (descr, "".join(f"{d}, " for d in shape))
    head = head.ljust(117) + "\n"
    data = struct.pack("<%d%s" % (len(values), FORMATS[descr]), *values) if descr in FORMATS else values
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data


def npz(name, compression=zipfile.ZIP_STORED, **arrays):
    with zipfile.ZipFile(os.path.join(folder, name), "w", compression) as z:
        for key, value in arrays.items():
            z.writestr(key + ".npy", value)


def images(n, size=64):
    return [(i * 37 % 17) / 16.0 for i in range(n * size)]


N = 50
x = npy("<f4", (N, 8, 8, 1), images(N))
labels = [i % 10 for i in range(N)]
y = npy("<i4", (N,), labels)


def changed(values, at, value):
    return values[:at] + [value] + values[at + 1:]


npz("good.npz", x=x, y=y)
npz("packed.npz", zipfile.ZIP_DEFLATED, x=x, y=y)
npz("no_axis.npz", x=npy("<f4", (N, 8, 8), images(N)), y=y)
npz("two_axes.npz", x=npy("<f4", (N, 64), images(N)), y=y)
npz("shape.npz", x=npy("<f4", (N, 8, 7, 1), images(N, 56)), y=y)
npz("one_hot.npz", x=x, y=npy("<f4", (N, 10), [float(labels[i // 10] == i % 10) for i in range(10 * N)]))
npz("nan.npz", x=npy("<f4", (N, 8, 8, 1), changed(images(N), 64 * 17 + 5, float("nan"))), y=y)
npz("nan64.npz", x=npy("<f8", (N, 8, 8, 1), changed(images(N), 64 * 17 + 5, float("nan"))), y=y)
npz("inf16.npz", x=npy("<f2", (N, 8, 8, 1), changed(images(N), 64 * 17 + 5, float("inf"))), y=y)
npz("negative.npz", x=x, y=npy("<i4", (N,), changed(labels, 31, -1)))
npz("class10.npz", x=x, y=npy("<i8", (N,), changed(labels, 31, 10)))
npz("class10_u8.npz", x=x, y=npy("|u1", (N,), changed(labels, 31, 10)))
npz("half.npz", x=x, y=npy("<f4", (N,), [float(v) for v in changed(labels, 31, 2.5)]))
npz("text.npz", x=npy("<U3", (N,), "".join("abc" for _ in labels).encode("utf-32-le")), y=y)
npz("complex.npz", x=npy("<c8", (N, 8, 8, 1), bytes(8 * 64 * N)), y=y)
npz("count.npz", x=x, y=npy("<i4", (N - 1,), labels[:-1]))
npz("three.npz", x=npy("<f4", (3, 8, 8, 1), images(3)), y=npy("<i4", (3,), labels[:3]))
npz("none.npz", x=npy("<f4", (0, 8, 8, 1), []), y=npy("<i4", (0,), []))
names = npy("<U1", (10,), "abcdefghij".encode("utf-32-le"))
npz("more.npz", x=x, y=y, class_names=names, mean=npy("<f8", (), [0.5]), x_test=npy("<f4", (3, 8, 8, 1), images(3)))
npz("weights_text.npz", x=x, y=y, sample_weight=npy("<U3", (N,), "".join("abc" for _ in labels).encode("utf-32-le")))
npz("weights_short.npz", x=x, y=y, sample_weight=npy("<f4", (3,), [1.0, 2.0, 3.0]))
npz("doubled.npz", x=x, y=y)
with zipfile.ZipFile(os.path.join(folder, "doubled.npz"), "a") as archive:
    warnings.simplefilter("ignore")
    archive.writestr("x.npy", y)
npz("bytes_first.npz", labels=npy("|u1", (N,), labels), images=x)
npz("bytes.npz", x=npy("|u1", (N, 8, 8, 1), [int(v * 16) for v in images(N)]), y=y)
npz("first.npz", x=npy("<f4", (N, 1, 8, 8), images(N)), y=y)
npz("weights.npz", x=x, y=y, sample_weight=npy("<f4", (N, 2), [1.0] * 2 * N))
npz("weights_nan.npz", x=x, y=y, sample_weight=npy("<f4", (N,), changed([1.0] * N, 0, float("nan"))))
npz("wide.npz", x=x, y=npy("<i8", (N,), changed(labels, 31, 2**32)))
with open(os.path.join(folder, "only.npy"), "wb") as f:
    f.write(x)
npz("no_y.npz", x=x)
npz("other_names.npz", pictures=x, answers=y)
for name in ("good.npz", "packed.npz"):
    with open(os.path.join(folder, name), "rb") as f:
        whole = f.read()
    with open(os.path.join(folder, "cut_" + name), "wb") as f:
        f.write(whole[:len(whole) * 2 // 3])
    with open(os.path.join(folder, "flipped_" + name), "wb") as f:
        at = len(whole) // 4
        f.write(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:])
with open(os.path.join(folder, "cut.npy"), "wb") as f:
    f.write(x[:-10])
with open(os.path.join(folder, "head.npy"), "wb") as f:
    f.write(x[:40])
row = ",".join(str(v) for v in images(1)) + ",3\n"
with open(os.path.join(folder, "cut.csv"), "w") as f:
    f.write(row * 5 + row[:100])
with open(os.path.join(folder, "nan.csv"), "w") as f:
    f.write(row * 5 + "nan" + row[row.index(","):])
with open(os.path.join(folder, "word.csv"), "w") as f:
    f.write(row * 5 + "oops" + row[row.index(","):])
with open(os.path.join(folder, "header_only.csv"), "w") as f:
    f.write("a,b,y\n")

# Good ones that are put together in other ways than most.
fractions = images(N)
npz("labels_first.npz", y_train=npy("|u1", (N,), labels), x_train=x)
npz("bytes.npz", x=npy("|u1", (N, 8, 8, 1), [int(16 * v) for v in fractions]), y=y)
npz("weighed.npz", x=x, y=y, sample_weight=npy("<f4", (N,), [i % 3 / 2 for i in range(N)]))
npz("moved.npz", x=x, y=npy("<i4", (N,), [(v + 1) % 10 for v in labels]))
one_hot = npy("<f4", (N, 10), [float(labels[i // 10] == i % 10) for i in range(10 * N)])
npz("by_name.npz", input_layer=x, dense=one_hot, sample_weight=npy("<f4", (N,), [i % 3 / 2 for i in range(N)]))
npz("by_letter.npz", x=x, y=one_hot, sample_weight=npy("<f4", (N,), [i % 3 / 2 for i in range(N)]))
# Two inputs, whole numbers and fractions: as bytes beside floats, and all as floats.
whole, part = [i * 7 % 250 for i in range(N * 6)], [i * 13 % 17 / 17 for i in range(N * 6)]
for name, kind in (("mixed.npz", "|u1"), ("floats.npz", "<f4")):
    npz(name, left=npy(kind, (N, 6), whole), right=npy("<f4", (N, 6), part), first=npy("<f4", (N, 1), part[:N * 1]),
        second=npy("<f4", (N, 2), part[:N * 2]))
with open(os.path.join(folder, "images.csv"), "w") as table:
    table.write(",".join(["label"] + [f"p{i}" for i in range(64)]) + "\n")
    for i in range(N):
        table.write(",".join(map(str, [labels[i]] + fractions[64 * i:64 * (i + 1)])) + "\n")

with open(os.path.join(folder, "used.csv"), "w") as table:
    for i in range(2000):
        print(",".join("%d" % (j * i % 17) for j in range(64)) + ",%d" % (i % 10), file=table)
