#!/usr/bin/env python3
"""peak.py FILE COMMAND...: runs a command and writes to FILE the most memory of its own (RssAnon + RssShmem, in bytes) that
was seen from outside. Its exit status is the command's."""
import re
import subprocess
import sys
import time

process = subprocess.Popen(sys.argv[2:])
fields = re.compile(r"Rss(?:Anon|Shmem):\s+(\d+)")
peak = 0
while process.poll() is None:
    try:
        with open(f"/proc/{process.pid}/status") as status:
            peak = max(peak, 1024 * sum(map(int, fields.findall(status.read()))))
    except OSError:
        break
    time.sleep(0.001)
with open(sys.argv[1], "w") as out:
    print(peak, file=out)
sys.exit(process.wait())
