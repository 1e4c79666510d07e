"""Programs that run out of memory, written after the rules of explain and not used to make them: how well do the rules do on others'
programs? Each is run from a file, so that tracebacks show its lines. The first count, before anything was changed, is in docs/explain.md.
"""


def cases(case):
    """The first set: run once on 2026-11-15, judged, and then learnt from."""
    c = []
    # -- PyTorch, held to a few GiB
    c.append(case("held-torch-limit-lstm", "limit", "file", """
        import torch
        from torch import nn

        torch.cuda.set_per_process_memory_fraction(0.03)

        class Tagger(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(50000, 512)
                self.lstm = nn.LSTM(512, 1024, num_layers=3, batch_first=True, bidirectional=True)
                self.out = nn.Linear(2048, 64)

            def forward(self, tokens):
                hidden, _ = self.lstm(self.embed(tokens))
                return self.out(hidden)

        model = Tagger().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        for epoch in range(3):
            tokens = torch.randint(0, 50000, (256, 512), device="cuda")
            loss = model(tokens).float().logsumexp(-1).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    """, alone=False))
    c.append(case("held-torch-growing-rnn", "growing", "file", """
        import torch
        from torch import nn

        torch.cuda.set_per_process_memory_fraction(0.03)
        cell, head = nn.GRUCell(256, 2048).cuda(), nn.Linear(2048, 10).cuda()
        optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
        hidden = torch.zeros(512, 2048, device="cuda")
        total = 0
        for step in range(2000):
            hidden = cell(torch.randn(512, 256, device="cuda"), hidden)
            total = total + nn.functional.cross_entropy(head(hidden), torch.zeros(512, dtype=torch.long, device="cuda"))
            if step % 10 == 0:
                print(f"step {step} running loss {float(total) / (step + 1):.3f} GPU memory: {torch.cuda.memory_allocated() / 2**30:.2f} GiB", flush=True)
    """, alone=False))
    c.append(case("held-torch-growing-bar", "growing", "file", """
        import torch

        torch.cuda.set_per_process_memory_fraction(0.03)
        model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(4))).cuda()
        losses = []
        for i in range(1, 1001):
            loss = model(torch.randn(512, 4096, device="cuda")).pow(2).mean()
            losses.append(loss)
            mem = torch.cuda.memory_allocated() / 2**30
            print(f"\\r{i / 10:3.0f}%|{'#' * (i // 50):20}| {i}/1000 [00:0{i % 10}<01:00, loss={loss.item():.3f}, mem={mem:.2f}G]", end="\\n" if i % 5 == 0 else "", flush=True)
    """, alone=False))
    c.append(case("held-torch-evaluation-function", "evaluation", "file", """
        import torch
        from torch import nn

        torch.cuda.set_per_process_memory_fraction(0.04)
        net = nn.Sequential(nn.Conv2d(3, 96, 5, padding=2), nn.GELU(), nn.Conv2d(96, 96, 5, padding=2), nn.GELU(), nn.Conv2d(96, 96, 5, padding=2),
                            nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 100)).cuda()
        optimizer = torch.optim.Adam(net.parameters())

        def train(images):
            loss = net(images).logsumexp(1).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()

        def evaluate(images):
            net.eval()
            return net(images).argmax(1)

        for epoch in range(2):
            print(f"Epoch {epoch}: train_loss={train(torch.randn(24, 3, 160, 160, device='cuda')):.3f}")
            print("accuracy", evaluate(torch.randn(384, 3, 160, 160, device="cuda")).float().mean())
    """, alone=False))
    c.append(case("held-torch-limit-vit", "limit", "file", """
        import torch
        from torch import nn

        torch.cuda.set_per_process_memory_fraction(6 / 140)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, dropout=0.0)
        model = nn.TransformerEncoder(layer, 12).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(5):
            out = model(torch.randn(128, 197, 768, device="cuda"))
            out.pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            print("step", step, "done")
    """, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, alone=False))
    # -- JAX, held to a few GiB
    c.append(case("held-jax-limit-mlp", "limit", "file", """
        import jax
        import jax.numpy as jnp

        key = jax.random.key(0)
        sizes = [4096] * 9
        params = [(jax.random.normal(key, (a, b)) * 0.01, jnp.zeros(b)) for a, b in zip(sizes, sizes[1:])]

        def loss(params, x):
            for w, b in params:
                x = jax.nn.gelu(x @ w + b)
            return (x ** 2).mean()

        @jax.jit
        def train_step(params, x):
            value, grads = jax.value_and_grad(loss)(params, x)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

        for step in range(3):
            params, value = train_step(params, jax.random.normal(key, (65536, 4096)))
            print("step", step, "loss", value)
    """, env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.07"}, alone=False))
    c.append(case("held-jax-growing-snapshots", "growing", "file", """
        import jax
        import jax.numpy as jnp

        params = jnp.ones((12000, 12000))
        best = []
        for epoch in range(50):
            params = params * 0.999 + 0.001
            best.append(params)
            stats = jax.local_devices()[0].memory_stats()
            print(f"epoch {epoch} finished, allocated {stats['bytes_in_use'] / 1e9:.2f} GB", flush=True)
    """, env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.06"}, alone=False))
    c.append(case("held-jax-fragmentation-cache", "fragmentation", "file", """
        import jax
        import jax.numpy as jnp

        cache = {}
        try:
            for i in range(1000):
                length = 4000 + 700 * (i % 7)
                cache[i] = jax.block_until_ready(jnp.ones((length, 4096)))
        except Exception:
            print("the cache is full with", len(cache), "entries")
        for i in list(cache):
            if i % 3:
                del cache[i]
        batch = jax.block_until_ready(jnp.ones((400000, 2048)))
    """, env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.08"}, alone=False))
    c.append(case("held-jax-evaluation-images", "evaluation", "file", """
        import jax
        import jax.numpy as jnp

        kernel = jnp.ones((64, 3, 7, 7)) * 0.01
        features = jax.jit(lambda x: jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME")).mean((2, 3)))
        for step in range(4):
            print("train step", step, float(features(jnp.ones((16, 3, 128, 128))).mean()))
        print("evaluating the test set", flush=True)
        print(float(features(jnp.ones((3000, 3, 128, 128))).mean()))
    """, env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.06"}, alone=False))
    # -- the whole card, one after the other
    c.append(case("held-torch-too-large-gpt", "too-large", "file", """
        import torch
        from torch import nn

        layer = nn.TransformerEncoderLayer(2560, 20, 10240, batch_first=True, dropout=0.1)
        model = nn.TransformerEncoder(layer, 16).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for step in range(4):
            hidden = model(torch.randn(64, 2048, 2560, device="cuda"))
            hidden.pow(2).mean().backward()
            optimizer.step()
            print("step", step)
    """, alone=True))
    c.append(case("held-torch-other-process-two", "other-process", "file", """
        import torch
        from torch import nn

        model = nn.Sequential(nn.Conv2d(3, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()).cuda()
        for step in range(3):
            model(torch.randn(256, 3, 224, 224, device="cuda")).mean().backward()
            print("iteration", step)
    """, hog=[58, 64], alone=True))
    c.append(case("held-torch-other-framework-cupy", "other-framework", "file", """
        import cupy
        import torch

        table = cupy.ones(90 * 2**30, dtype=cupy.uint8)
        print("lookup table ready", table.nbytes >> 30, "GiB")
        model = torch.nn.Linear(1024, 1024).cuda()
        activations = torch.empty(60 * 2**30, dtype=torch.uint8, device="cuda")
    """, alone=True))
    c.append(case("held-torch-library-eigh", "library", "file", """
        import torch

        a = torch.randn(512, 512, device="cuda")
        a = a + a.T
        ballast = []
        while torch.cuda.mem_get_info()[0] > 6 << 20:
            free = torch.cuda.mem_get_info()[0] - (6 << 20)
            try:
                ballast.append(torch.empty(max(2 << 20, free // 2 >> 21 << 21), dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                break
        print(torch.linalg.eigvalsh(a)[:3])
    """, alone=True))
    c.append(case("held-jax-too-large-pairs", "too-large", "file", """
        import jax
        import jax.numpy as jnp

        points = jax.random.normal(jax.random.key(0), (300000, 8))
        distances = jax.jit(lambda p: jnp.sqrt(((p[:, None] - p[None]) ** 2).sum(-1)))(points)
        print(distances.mean())
    """, alone=True))
    c.append(case("held-jax-other-process-mlp", "other-process", "file", """
        import jax
        import jax.numpy as jnp

        w = jnp.ones((16384, 16384)) * 1e-3
        x = jnp.ones((262144, 16384))
        print(jax.jit(lambda w, x: jnp.tanh(x @ w).mean())(w, x))
    """, hog=127, alone=True))
    return c


def second(case):
    """The second set: written after the first had been learnt from."""
    c = []
    c.append(case("held2-torch-limit-unet", "limit", "file", """
        import torch
        from torch import nn

        torch.cuda.set_per_process_memory_fraction(0.04)

        class Down(nn.Module):
            def __init__(self, a, b):
                super().__init__()
                self.body = nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1), nn.SiLU())

            def forward(self, x):
                return self.body(x)

        class Segmenter(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.up, self.out = Down(3, 48), Down(48, 96), nn.ConvTranspose2d(96, 48, 2, 2), nn.Conv2d(96, 4, 1)

            def forward(self, x):
                skip = self.a(x)
                deep = self.b(nn.functional.max_pool2d(skip, 2))
                return self.out(torch.cat([skip, self.up(deep)], 1))

        model = Segmenter().cuda()
        images = torch.randn(64, 3, 384, 384, device="cuda")
        model(images).mean().backward()
    """, alone=False))
    c.append(case("held2-torch-growing-metrics", "growing", "file", """
        import torch

        torch.cuda.set_per_process_memory_fraction(0.02)
        net = torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 100)).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        running = 0.0
        for iteration in range(1000):
            scores = net(torch.randn(1024, 2048, device="cuda"))
            loss = scores.logsumexp(1).mean()
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            running += loss
            if iteration % 5 == 0:
                print(f"iter {iteration:4d}  loss {loss.item():.4f}  mem {torch.cuda.memory_allocated() / 1e6:.0f} MB", flush=True)
    """, alone=False))
    c.append(case("held2-torch-evaluation-predict", "evaluation", "file", """
        import torch
        from torch import nn

        torch.cuda.set_per_process_memory_fraction(0.03)
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6).cuda()

        def fit(batches):
            for _ in range(batches):
                encoder(torch.randn(8, 256, 512, device="cuda")).mean().backward()

        def predict(sequences):
            return encoder(sequences).mean(1).cpu()

        fit(5)
        print("fitted")
        print(predict(torch.randn(512, 256, 512, device="cuda")).shape)
    """, alone=False))
    c.append(case("held2-torch-fragmentation-lengths", "fragmentation", "file", """
        import torch

        torch.cuda.set_per_process_memory_fraction(8 * 2**30 / torch.cuda.get_device_properties(0).total_memory)
        keep = []
        for length in range(100, 124):
            keep.append(torch.empty(length * 3 << 20, dtype=torch.uint8, device="cuda"))
            half = torch.empty(length << 20, dtype=torch.uint8, device="cuda")
            keep[-1] = torch.empty(length * 2 << 20, dtype=torch.uint8, device="cuda")
            keep.append(half)
        keep = keep[1::2]
        print("sequences done", flush=True)
        logits = torch.empty(int(3.5 * 2**30), dtype=torch.uint8, device="cuda")
    """, alone=False))
    c.append(case("held2-jax-limit-conv", "limit", "file", """
        import jax
        import jax.numpy as jnp

        def network(params, x):
            for w in params:
                x = jax.nn.relu(jax.lax.conv(x, w, (1, 1), "SAME"))
            return x.mean()

        params = [jnp.ones((64, 3, 3, 3)) * 0.01] + [jnp.ones((64, 64, 3, 3)) * 0.01 for _ in range(5)]
        grads = jax.jit(jax.grad(network))(params, jnp.ones((256, 3, 192, 192)))
        print(jax.tree.map(jnp.shape, grads))
    """, env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.05"}, alone=False))
    c.append(case("held2-jax-growing-history", "growing", "file", """
        import jax
        import jax.numpy as jnp

        state = jnp.zeros((8192, 8192))
        trajectory = []
        for step in range(400):
            state = jax.block_until_ready(state + 1)
            trajectory.append(state)
            if step % 2 == 0:
                used = jax.local_devices()[0].memory_stats()["bytes_in_use"]
                print(f"step {step}: {used / 2**20:.0f} MiB in use", flush=True)
    """, env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.05"}, alone=False))
    c.append(case("held2-jax-evaluation-loop", "evaluation", "file", """
        import jax
        import jax.numpy as jnp

        w = jnp.ones((2048, 2048)) * 1e-3
        loss = jax.jit(lambda w, x: jnp.tanh(x @ w).mean())

        def train(w):
            for epoch in range(2):
                print("epoch", epoch, "train loss", float(loss(w, jnp.ones((512, 2048)))))

        def evaluate(w):
            return float(jax.jit(lambda w, x: jnp.sort(x @ w, axis=0).mean())(w, jnp.ones((600000, 2048))))

        train(w)
        print("test loss", evaluate(w))
    """, env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.06"}, alone=False))
    c.append(case("held2-torch-library-fft", "library", "file", """
        import torch

        signal = torch.randn(4, 100003, device="cuda", dtype=torch.cfloat)
        ballast = []
        while torch.cuda.mem_get_info()[0] > 6 << 20:
            free = torch.cuda.mem_get_info()[0] - (6 << 20)
            try:
                ballast.append(torch.empty(max(2 << 20, free // 2 >> 21 << 21), dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                break
        print(torch.fft.fft(signal).abs().mean())
    """, alone=True))
    c.append(case("held2-torch-too-large-embedding", "too-large", "file", """
        import torch

        model = torch.nn.Embedding(60_000_000, 512, device="cuda")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.zeros(8, dtype=torch.long, device="cuda")).sum().backward()
        optimizer.step()
    """, alone=True))
    c.append(case("held2-torch-other-process-train", "other-process", "file", """
        import torch
        from torch import nn

        model = nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(8))).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(3):
            model(torch.randn(262144, 8192, device="cuda")).mean().backward()
            optimizer.step()
            print("step", step, "done")
    """, hog=118, alone=True))
    c.append(case("held2-jax-other-framework-torch", "other-framework", "file", """
        import torch

        features = torch.randn(90 * 2**28, device="cuda")
        print("torch features", features.shape)

        import jax.numpy as jnp
        print(jnp.ones((70 * 2**28,)).sum())
    """, alone=True))
    return c


def third(case):
    """The third set: written after the second had been learnt from; libraries over PyTorch, log lines of other makes."""
    c = []
    c.append(case("held3-lightning-evaluation", "evaluation", "file", """
        import lightning_or_pl as pl
        import torch
        from torch import nn

        torch.cuda.set_per_process_memory_fraction(0.03)

        class Classifier(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
                                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

            def training_step(self, batch, index):
                return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

            def validation_step(self, batch, index):
                self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters())

        def loader(count, batch, side):
            data = torch.utils.data.TensorDataset(torch.randn(count, 3, side, side), torch.zeros(count, dtype=torch.long))
            return torch.utils.data.DataLoader(data, batch_size=batch)

        trainer = pl.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, num_sanity_val_steps=0)
        trainer.fit(Classifier(), loader(32, 8, 96), loader(512, 512, 256))
    """.replace("lightning_or_pl", "pytorch_lightning"), alone=False))
    c.append(case("held3-transformers-limit", "limit", "file", """
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.cuda.set_per_process_memory_fraction(0.05)
        model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=768, n_head=12)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
        for step in range(3):
            tokens = torch.randint(0, 50000, (16, 1024), device="cuda")
            out = model(input_ids=tokens, labels=tokens)
            out.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print({"loss": round(out.loss.item(), 4), "step": step})
    """, alone=False))
    c.append(case("held3-torch-growing-logging", "growing", "file", """
        import logging

        import torch

        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
        torch.cuda.set_per_process_memory_fraction(0.02)
        model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 10)).cuda()
        replay = []
        for batch in range(500):
            states = torch.randn(4096, 4096, device="cuda")
            values = model(states)
            replay.append((states, values))
            if batch % 4 == 0:
                logging.info("batch=%d value=%.3f gpu_mem=%dMB", batch, values.mean().item(), torch.cuda.memory_allocated() // 2**20)
    """, alone=False))
    c.append(case("held3-torch-growing-hooks", "growing", "file", """
        import torch
        from torch import nn

        torch.cuda.set_per_process_memory_fraction(0.03)
        net = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2048), nn.Tanh()) for _ in range(6))).cuda()
        seen = []
        for block in net:
            block.register_forward_hook(lambda module, args, output: seen.append(output))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for epoch in range(40):
            for _ in range(4):
                loss = net(torch.randn(2048, 2048, device="cuda")).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"[epoch {epoch + 1}/40] loss={loss.item():.5f} | cuda: {torch.cuda.memory_allocated() / 2**30:.2f}GiB allocated, {torch.cuda.memory_reserved() / 2**30:.2f}GiB reserved", flush=True)
    """, alone=False))
    c.append(case("held3-torch-fragmentation-batches", "fragmentation", "file", """
        import torch

        torch.cuda.set_per_process_memory_fraction(11 * 2**30 / torch.cuda.get_device_properties(0).total_memory)
        activations, weights = [], []
        for layer in range(40):
            probe = torch.empty((256, 1 << 18), device="cuda")
            del probe
            weights.append(torch.empty((48, 1 << 18), device="cuda"))
            activations.append(torch.empty((200, 1 << 18), device="cuda"))
        print("warm-up finished", flush=True)
        activations.clear()
        larger_batch = torch.empty((1024, 1 << 20), device="cuda")
    """, alone=False))
    c.append(case("held3-jax-limit-scan", "limit", "file", """
        import jax
        import jax.numpy as jnp

        def cell(h, x):
            h = jnp.tanh(h @ w + x)
            return h, h

        w = jnp.ones((2048, 2048)) * 1e-3

        @jax.jit
        def loss(xs):
            return jax.lax.scan(cell, jnp.zeros((512, 2048)), xs)[1].sum()

        xs = jnp.ones((1000, 512, 2048))
        print("gradient norm", jnp.linalg.norm(jax.grad(loss)(xs)))
    """, env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.06"}, alone=False))
    c.append(case("held3-torch-limit-cdist", "limit", "file", """
        import torch

        torch.cuda.set_per_process_memory_fraction(0.05)
        points = torch.randn(60000, 64, device="cuda", requires_grad=True)
        distances = torch.cdist(points, points)
        nearest = distances.topk(8, largest=False).values
        nearest.mean().backward()
        print(points.grad.norm())
    """, alone=False))
    c.append(case("held3-torch-too-large-logits", "too-large", "file", """
        import torch

        hidden = torch.randn(64 * 2048, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        vocabulary = torch.nn.Linear(1024, 256000, bias=False, device="cuda", dtype=torch.bfloat16)
        loss = torch.nn.functional.cross_entropy(vocabulary(hidden).float(), torch.zeros(64 * 2048, dtype=torch.long, device="cuda"))
        loss.backward()
    """, alone=True))
    c.append(case("held3-torch-other-process-generate", "other-process", "file", """
        import torch
        from torch import nn

        decoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True), 8).cuda().half().eval()
        with torch.inference_mode():
            for length in (512, 1024, 2048, 4096):
                decoder(torch.randn(96, length, 2048, device="cuda", dtype=torch.half))
                print("generated", length, "tokens", flush=True)
    """, hog=133, alone=True))
    c.append(case("held3-jax-other-process-train", "other-process", "file", """
        import jax
        import jax.numpy as jnp

        params = [jnp.ones((8192, 8192)) * 1e-3 for _ in range(8)]

        @jax.jit
        def loss(params, x):
            for w in params:
                x = jax.nn.silu(x @ w)
            return x.mean()

        for step in range(3):
            grads = jax.grad(loss)(params, jnp.ones((65536, 8192)))
            params = jax.tree.map(lambda p, g: p - g, params, grads)
            print("step", step)
    """, hog=128, alone=True))
    c.append(case("held3-torch-library-conv", "library", "file", """
        import torch

        images = torch.randn(16, 3, 224, 224, device="cuda")
        cache = []
        try:
            while True:
                cache.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            print("cached", len(cache) // 16, "GiB of samples")
        del cache[-3:]
        model = torch.nn.Conv2d(3, 64, 7, stride=2).cuda()
        print(model(images).mean())
    """, alone=True))
    return c
