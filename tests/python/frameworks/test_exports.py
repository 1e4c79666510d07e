"""What memfit report writes for other viewers, read by their own readers: PyTorch's memory_viz, Perfetto's protobufs, xprof's converter.

Needs any of torch, perfetto, xprof; what is missing is skipped."""

import importlib.util
import json
import os
import pickle
import random
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["MEMFIT_PROGRAM"]
KINDS = ["parameters", "gradients", "optimizer", "activations", "inputs", "workspace", "padding", "fixed", "other"]
NAMES = ["conv1/kernel", "forward (model.py:41) < train_step (train.py:7)", "f (<stdin>:3)", "a;b <c>", "naïve 日本", "x (y)", "", "z" * 200]


def has(module):
    return importlib.util.find_spec(module) is not None


def write_trace(path, seed, count=4000):
    """A random trace; returns its peak."""
    random.seed(seed)
    alive, live, peak, time = [], 0, 0, 0
    with open(path, "w", encoding="utf-8") as f:
        f.write("time_us,op,id,bytes,stream,kind,owner,device\n")
        for i in range(count):
            time += random.randint(0, 5)
            if alive and (random.random() < 0.45 or len(alive) > 300):
                what = alive.pop(random.randrange(len(alive)))
                f.write("%d,free,%d,%d,%d,%s,%s,0\n" % (time, *what))
                live -= what[1]
            else:
                name = random.choice(NAMES)
                what = (i, random.choice((0, 1, 511, 512, 4096, 1 << 20)) * random.randint(1, 3), random.randint(0, 2), random.choice(KINDS), '"%s"' % name)
                alive.append(what)
                f.write("%d,alloc,%d,%d,%d,%s,%s,0\n" % (time, *what))
                live += what[1]
                peak = max(peak, live)
    return peak


def report(*arguments):
    return json.loads(subprocess.run([PROGRAM, "report", "--json", *arguments], check=True, capture_output=True, text=True).stdout)


class Exports(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_memory_viz_comes_back(self):
        for seed in range(5):
            peak = write_trace(self.path("t.csv"), seed)
            before = report("--memory-viz", self.path("v.pickle"), self.path("t.csv"))
            with open(self.path("v.pickle"), "rb") as f:
                data = pickle.load(f)
            live = most = 0
            for e in data["device_traces"][0]:
                live += e["size"] if e["action"] == "alloc" else -e["size"] if e["action"] == "free_completed" else 0
                most = max(most, live)
            self.assertEqual(most, peak)
            self.assertEqual(before["peak_live_bytes"], peak)
            after = report(self.path("v.pickle"))
            for key in before:
                if key != "trace":
                    self.assertEqual(before[key], after[key], key)
            alive = sum(b["requested_size"] for s in data["segments"] for b in s["blocks"] if b["state"] == "active_allocated")
            self.assertEqual(alive, live)

    @unittest.skipUnless(has("torch"), "no torch")
    def test_pytorch_reads_it(self):
        from torch.cuda import _memory_viz

        write_trace(self.path("t.csv"), 7)
        report("--memory-viz", self.path("v.pickle"), self.path("t.csv"))
        with open(self.path("v.pickle"), "rb") as f:
            data = pickle.load(f)
        self.assertIn("total_reserved", _memory_viz.segsum(data))
        self.assertIn("Device 0", _memory_viz.trace(data))
        self.assertIn("MemoryViz.js", _memory_viz.trace_plot(data))
        self.assertIn("MemoryViz.js", _memory_viz.segment_plot(data))

    @unittest.skipUnless(has("perfetto"), "no perfetto")
    def test_perfetto_reads_it(self):
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

        peak = write_trace(self.path("t.csv"), 8)
        got = report("--perfetto", self.path("t.perfetto"), self.path("t.csv"))
        trace = Trace()
        with open(self.path("t.perfetto"), "rb") as f:
            trace.ParseFromString(f.read())
        tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
        named = {t.name: u for u, t in tracks.items()}
        values = [p.track_event.counter_value for p in trace.packet if p.HasField("track_event") and p.track_event.track_uuid == named["live bytes"]]
        self.assertEqual(max(values), peak)
        self.assertEqual(len(values), got["events"])
        last = {}
        for p in trace.packet:
            if p.HasField("track_event") and p.track_event.type == TrackEvent.TYPE_COUNTER:
                last[p.track_event.track_uuid] = p.track_event.counter_value
        kinds = sum(v for u, v in last.items() if tracks[u].name.startswith("live: "))
        self.assertEqual(kinds, values[-1])
        begins = [p for p in trace.packet if p.HasField("track_event") and p.track_event.type == TrackEvent.TYPE_SLICE_BEGIN]
        self.assertEqual(len(begins), got["step_count"])

    @unittest.skipUnless(has("xprof"), "no xprof")
    def test_tensorboard_reads_it(self):
        from xprof.convert import raw_to_tool_data

        peak = write_trace(self.path("t.csv"), 9)
        got = report("--tensorboard", self.path("tb"), self.path("t.csv"))
        file = self.path("tb/plugins/profile/memfit/memfit.xplane.pb")
        data, _ = raw_to_tool_data.xspace_to_tool_data([file], "memory_profile", {})
        profile = json.loads(data)["memoryProfilePerAllocator"]["memfit"]
        self.assertEqual(int(profile["profileSummary"]["peakStats"]["peakBytesInUse"]), peak)
        largest = got["owners"][0]["name"]
        self.assertTrue(any(a["tfOpName"] == largest for s in profile["memoryProfileSnapshots"] for a in [s["activityMetadata"]] if "tfOpName" in a))

    def test_folded(self):
        peak = write_trace(self.path("t.csv"), 10)
        report("--flame", self.path("t.folded"), self.path("t.csv"))
        with open(self.path("t.folded"), encoding="utf-8") as f:
            lines = f.read().splitlines()
        self.assertEqual(sum(int(line.rsplit(" ", 1)[1]) for line in lines), peak)
        self.assertTrue(all(line.startswith("memfit;") for line in lines))
        self.assertTrue(any(line.startswith("memfit;") and ";train_step (train.py:7);forward (model.py:41) " in line for line in lines))


if __name__ == "__main__":
    unittest.main()
