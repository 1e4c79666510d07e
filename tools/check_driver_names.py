#!/usr/bin/env python3
"""Every function of CUDA's driver that could take or give back device memory is classified: the governor stands in front of it
(src/govern/driver_names.h), or a rule below says why not. A header of a newer CUDA with a name that nobody has looked at fails.

usage: tools/check_driver_names.py [cuda.h ...]     without arguments: the headers found on this machine; none: exit status 77
"""
import glob
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
hooked = set(re.findall(r"X\((\w+), \d+\)", (root / "src/govern/driver_names.h").read_text()))
# What could have to do with memory, by its name.
LOOK = re.compile(r"Alloc|Create|Import|Mem|Pool|Array|Retain|Load|Export|Register|Instantiate|Upload|Launch|SetLimit|Open|Reset|Destroy|Free|Release|Trim|Restore")
# Why a name needs no wrapper; the first rule that fits.
RULES = [
    ("copies and fills", r"cuMemcpy|cuMemset|cuGraph(Exec|Add)?(Memcpy|Memset)|cuMemBatchDecompress"),
    ("asks only", r"\w*Get(?!ProcAddress)|cuFuncIsLoaded|cuLogs"),
    ("host memory", r"cuMemAllocHost|cuMemFreeHost|cuMemHost"),
    ("addresses, access, hints", r"cuMemAddress|cuMemSetAccess|cuMemAdvise|cuMemPrefetch|cuMemDiscard|cuMemMapArrayAsync|cuStreamAttachMem|cuMemPoolSetAccess|cuMemPoolSetAttribute"),
    ("which pool: what is taken from it counts", r"cuDeviceSetMemPool|cuMemSetMemPool|cuMemPoolCreate|cuMemPoolExport|cuMemExportToShareableHandle"),
    ("a pool keeps what is given back to it; frees of others go to the driver", r"cuMemFreeAsync"),
    ("another process's or another interface's memory, charged there", r"cuIpc|cuImportExternal|cuExternalMemory|cuDestroyExternal|cuMemImportFromShareableHandle|cuMemPoolImport|cuGraphics"),
    ("measured: contexts, code, graphs, streams", r"cuCtx|cuGreenCtx|cuDevicePrimaryCtx|cuModule|cuLibrary|cuLink|cuFunc|cuGraph|cuDeviceGraphMem|cuDeviceSetGraphMem|cuLaunch|cuStream|cuEvent|cuMulticast|cuCheckpoint"),
    ("descriptions and handles without memory", r"cuTex|cuSurf|cuUserObject|cuOccupancy|cuDeviceRegister"),
    ("of CUDA before 3.2, with addresses of 32 bits", r"cu(MemAlloc|MemAllocPitch|MemFree|MemGetInfo|ArrayCreate|Array3DCreate|DeviceTotalMem)$"),
]


def names_of(header):
    text = pathlib.Path(header).read_text(errors="replace")
    renamed = dict(re.findall(r"#define\s+(cu\w+)\s+(cu\w+_v\d+)\b", text))
    plain = set(re.findall(r"CUDAAPI\s+(cu\w+)\s*\(", text))
    return {renamed.get(n, n) for n in plain} | plain


headers = sys.argv[1:] or sorted(set(glob.glob("/usr/local/cuda*/include/cuda.h") + glob.glob("/usr/include/cuda.h")))
if not headers:
    print("no cuda.h here: skipped")
    sys.exit(77)
bad = False
for header in headers:
    names = {n for n in names_of(header) if LOOK.search(n)}
    unknown = [n for n in sorted(names) if n not in hooked and not any(re.match(rule, n) for _, rule in RULES)]
    counts = {reason: 0 for reason, _ in RULES}
    for n in names - hooked:
        for reason, rule in RULES:
            if re.match(rule, n):
                counts[reason] += 1
                break
    print(f"{header}: {len(names)} names that could have to do with memory, {len(names & hooked)} wrapped, {len(unknown)} unknown")
    for reason, count in counts.items():
        print(f"  {count:4} {reason}")
    for n in unknown:
        print(f"  unknown: {n}: wrap it in src/govern/, or say in RULES why not")
        bad = True
sys.exit(1 if bad else 0)
