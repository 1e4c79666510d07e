#!/usr/bin/env python3
"""Runs the commands as people see them and looks at every line. Used by test_terminal.sh."""
import os
import pty
import re
import struct
import subprocess
import sys
import fcntl
import termios

memfit, fixtures = sys.argv[1:3]
plan, keras, logs, traces = (os.path.join(fixtures, name) for name in ("plan", "keras", "oom-logs", "traces"))
model = os.path.join(keras, "conv_rmsprop.keras")
bad = []


def clean(extra):
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE")}
    return dict(env, LC_ALL="C.UTF-8", **extra)


def piped(arguments, **env):
    return subprocess.run([memfit] + arguments, env=clean(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).stdout.decode()


def seen(arguments, columns, **env):
    """What a terminal of so many columns gets, on both of the program's streams."""
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = subprocess.Popen([memfit] + arguments, env=clean(dict({"TERM": "xterm"}, **env)), stdout=end, stderr=end, stdin=subprocess.DEVNULL)
    os.close(end)
    data = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        data += part
    child.wait()
    os.close(main)
    return data.decode().replace("\r\n", "\n")


def check_lines(what, text, columns):
    for line in text.split("\n"):
        line = re.sub(r"\x1b\[[0-9;]*[mK]", "", line.split("\r")[-1])
        if len(line) > columns and " " in line.strip():
            bad.append(f"{what}: {len(line)} cells at {columns}: {line}")
        if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", line):
            bad.append(f"{what}: a control character: {line!r}")


def same_words(what, folded, whole):
    if re.sub(r"\x1b\[[0-9;]*m", "", folded).split() != whole.split():
        bad.append(f"{what}: folding changed the words")


COMMANDS = "plan train evaluate predict tune run explain report ps doctor pack replay".split()
steady = [[], ["--help"], ["nosuch"]] + [[c, "--help"] for c in COMMANDS] + [[c] for c in COMMANDS if c not in ("ps", "doctor")]
steady += [[c, "--no-such-option"] for c in COMMANDS] + [["plan", "--for", "list"]]
for name, more in (("conv_pool_1024", ["-b", "256"]), ("resnet50_10", ["-v"]), ("mlp", ["--curve"]), ("with_lambda", []), ("conv_pool_128", ["-b", "4,8", "--precision", "float32,bf16"])):
    for runtime in ([], ["--runtime", "torch"]):
        steady.append(["plan", os.path.join(plan, name + ".json"), "--for", "rtx-3080"] + more + runtime)
steady.append(["plan", os.path.join(plan, "conv_pool_1024.json"), "-b", "256", "--for", "t4,h100,a100-80gb"])
steady.append(["plan", os.path.join(plan, "conv_pool_1024.json"), "-b", "256", "--for", "rtx-3080", "--memory", "1GiB"])
steady += [["explain", os.path.join(logs, name)] for name in sorted(os.listdir(logs)) if name.endswith(".log")][::6]
changing = [["train", model, "--data", "synthetic:64", "--epochs", "2"], ["train", model, "--data", "synthetic:64", "--memory", "1MiB"], ["doctor"], ["ps"]]
changing += [["replay", os.path.join(traces, "generated.csv")], ["pack", "nosuch.csv"], ["explain", os.path.join(traces, "generated.csv")]]
for arguments in steady + changing:
    what = " ".join(os.path.basename(a) for a in arguments) or "no command"
    for columns in (80, 120):
        check_lines(what, piped(arguments, COLUMNS=str(columns)), columns)
    if arguments in steady:
        same_words(what, piped(arguments, COLUMNS="80"), piped(arguments))
for arguments in (steady[3], steady[-12], changing[0], changing[4], ["plan", os.path.join(plan, "mlp.json"), "--for", "t4", "-v"]):
    what = "on a terminal: " + " ".join(os.path.basename(a) for a in arguments)
    for columns in (80, 120):
        check_lines(what, seen(arguments, columns), columns)

# Colour: on a terminal, and where it is forced; never in a pipe or against the reader's wish.
question = ["plan", os.path.join(plan, "mlp.json"), "--for", "t4"]
for wanted, text in ((True, seen(question, 80)), (False, seen(question, 80, NO_COLOR="1")), (False, seen(question, 80, CLICOLOR="0")), (False, seen(question, 80, TERM="dumb")),
                     (False, seen(question + ["--color=never"], 80)), (True, piped(question + ["--color", "always"])), (True, piped(question, CLICOLOR_FORCE="1")),
                     (False, piped(question)), (False, piped(question, COLUMNS="80")), (False, piped(question + ["--json", "--color=always"]))):
    if ("\x1b[" in text) != wanted:
        bad.append(f"colour is {'missing' if wanted else 'there'}: {text[:80]!r}")
if not piped(question + ["--color", "blue"]).startswith("memfit plan: --color blue: must be auto, always or never"):
    bad.append("--color blue")
# A pipe that says nothing of its width gets lines as they were written: whoever searches them finds them whole.
if not piped(question).split("\n")[0].endswith("--runtime asks for another's."):
    bad.append("a plain pipe: " + piped(question).split("\n")[0])
print("\n".join(bad))
sys.exit(bool(bad))
