#!/usr/bin/env python3
"""Checks wheels: at most 3 MB, for any CPython 3 and manylinux_2_28, nothing linked but the C library, no tests or caches inside."""
import os
import re
import subprocess
import sys
import tempfile
import zipfile

MOST_BYTES = 3_000_000
MAY_NEED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}
MAY_HOLD = re.compile(r"memfit(_engine)?/([\w]+\.py|py\.typed|_bin/(memfit|libmemfit(-govern)?\.so))$|memfit(_engine)?-[\d.]+\.dist-info/[\w./-]+$")


def needed(path):
    text = subprocess.check_output(["readelf", "-d", path], text=True)
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


def check(wheel):
    bad = []
    size = os.path.getsize(wheel)
    if size > MOST_BYTES:
        bad.append("%d bytes, at most %d" % (size, MOST_BYTES))
    if not re.search(r"-py3-none-manylinux_2_28_x86_64\.whl$", wheel):
        bad.append("its name does not end in -py3-none-manylinux_2_28_x86_64.whl")
    with zipfile.ZipFile(wheel) as z, tempfile.TemporaryDirectory() as folder:
        names = [n for n in z.namelist() if not n.endswith("/")]
        bad += ["holds " + n for n in names if not MAY_HOLD.match(n)]
        programs = [n for n in names if "/_bin/" in n]
        if not any(n.endswith("/memfit") for n in programs):
            bad.append("holds no program")
        if not os.path.basename(wheel).startswith("memfit_engine") and not any(n.endswith("/libmemfit-govern.so") for n in programs):
            bad.append("holds no libmemfit-govern.so: memfit run could not limit anything")
        for name in programs:
            extra = needed(z.extract(name, folder)) - MAY_NEED
            if extra:
                bad.append("%s needs %s" % (name, ", ".join(sorted(extra))))
    for what in bad:
        print("%s: %s" % (wheel, what))
    print("%s: %.2f MB%s" % (os.path.basename(wheel), size / 1e6, "" if bad else ", as it should be"))
    return not bad


sys.exit(0 if all([check(w) for w in sys.argv[1:]]) else 1)
