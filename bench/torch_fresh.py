"""Training and inference loops written after the pool's rules were finished: nothing was changed for them. As in torch_models.py each is a generator, one
step each; bench/torch_streams.py measures them.

blades, depth, answers and seasons were written when packing from the fullest moment was the last rule, and served to mend it. llama, prefetch, rollouts and
codec were written when the rules had closer packing and moves that nobody waits for, and before those had run on a card; codec showed that the purge disturbed steps that
had come to rest. vision, clips, scribe and folds were written when that was mended.
"""
import random

DEVICE = "cuda"


def blades_steps(torch):
    """torch.compile: a network of wide depthwise convolutions on pictures, mixed precision, trained on 96 at a time and tested on 128 every seventh step."""
    nn, F = torch.nn, torch.nn.functional

    class Blade(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.wide = nn.Conv2d(width, width, 7, padding=3, groups=width)
            self.norm, self.up, self.down = nn.GroupNorm(1, width), nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)

        def forward(self, x):
            return x + self.down(F.gelu(self.up(self.norm(self.wide(x)))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 96, 4, 4)
            self.a, self.b = nn.Sequential(Blade(96), Blade(96)), nn.Sequential(Blade(192), Blade(192))
            self.between, self.last = nn.Conv2d(96, 192, 2, 2), nn.Linear(192, 200)

        def forward(self, x):
            return self.last(self.b(self.between(self.a(self.first(x)))).mean((2, 3)))

    torch.manual_seed(0)
    model = Net().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    run = torch.compile(model, dynamic=False)
    for i in range(1 << 30):
        test = i % 7 == 6
        rows = 128 if test else 96
        x, y = torch.randn(rows, 3, 160, 160, device=DEVICE), torch.randint(0, 200, (rows,), device=DEVICE)
        with torch.set_grad_enabled(not test), torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(run(x).float(), y, label_smoothing=0.1)
        if not test:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def depth_steps(torch):
    """Side streams and DataLoader workers: pictures come on one stream, distances on another, with a mask of those that are known; the
    error of every picture leaves on a third."""
    nn, F = torch.nn, torch.nn.functional

    class Rooms(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            g = torch.Generator().manual_seed(i)
            return torch.randint(0, 255, (3, 128, 160), dtype=torch.uint8, generator=g), torch.randint(0, 4000, (1, 128, 160), dtype=torch.int16, generator=g)

    def conv(a, b, stride=1):
        return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU())

    torch.manual_seed(0)
    downs = [nn.Sequential(conv(a, b, 2), conv(b, b)).to(DEVICE) for a, b in ((3, 48), (48, 96), (96, 192), (192, 384))]
    ups = [conv(a + b, b).to(DEVICE) for a, b in ((384, 192), (192, 96), (96, 48))]
    last = nn.Conv2d(48, 1, 3, 1, 1).to(DEVICE)
    parameters = [p for m in (*downs, *ups, last) for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-3)
    loader = iter(torch.utils.data.DataLoader(Rooms(), 96, num_workers=4, pin_memory=True, persistent_workers=True))
    pictures, distances, results = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(pictures):
            x = x.to(DEVICE, non_blocking=True).float().div_(127.5).sub_(1)
        with torch.cuda.stream(distances):
            y = y.to(DEVICE, non_blocking=True).float().div_(1000)
            return x, y, y > 0.2

    ahead = [fetch(), fetch()]
    while True:
        x, y, known = ahead.pop(0)
        main = torch.cuda.current_stream()
        for stream, tensors in ((pictures, (x,)), (distances, (y, known))):
            main.wait_stream(stream)
            for t in tensors:
                t.record_stream(main)
        ahead.append(fetch())
        seen, h = [], x
        for d in downs:
            h = d(h)
            seen.append(h)
        for u, s in zip(ups, seen[-2::-1]):
            h = u(torch.cat((F.interpolate(h, scale_factor=2, mode="bilinear"), s), 1))
        error = (F.interpolate(last(h), scale_factor=2, mode="bilinear") - y).abs() * known
        loss = error.sum() / known.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        each = error.detach().mean((1, 2, 3))
        results.wait_stream(main)
        with torch.cuda.stream(results):
            each.to("cpu", non_blocking=True)
        each.record_stream(results)
        del x, y, known, seen, h, error, each, s, t, tensors
        yield loss


def answers_steps(torch):
    """Inference with growing sequences: questions of any length are read at once, answers are written some words at a time with what was read kept; batches
    of other sizes come when one is answered."""
    nn, F = torch.nn, torch.nn.functional
    layers, heads, width, vocab = 8, 16, 1024, 32000
    torch.manual_seed(0)
    words = nn.Embedding(vocab, width).to(DEVICE).to(torch.bfloat16)
    parts = [[nn.Linear(a, b, bias=False).to(DEVICE).to(torch.bfloat16) for a, b in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))]
             for _ in range(layers)]
    dice = random.Random(83)
    with torch.no_grad():
        while True:
            rows, length = dice.randrange(12, 49), dice.randrange(100, 700)
            kept, x = [None] * layers, words(torch.randint(0, vocab, (rows, length), device=DEVICE))
            for _ in range(dice.randrange(5, 14)):  # a step of ours: four words each
                for _ in range(4):
                    for i, (qkv, out, up, down) in enumerate(parts):
                        q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in qkv(F.rms_norm(x, (width,))).split(width, 2))
                        if kept[i] is not None:
                            k, v = torch.cat((kept[i][0], k), 2), torch.cat((kept[i][1], v), 2)
                        kept[i] = (k, v)
                        x = x + out(F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1).transpose(1, 2).reshape(x.shape))
                        x = x + down(F.silu(up(F.rms_norm(x, (width,)))))
                    scores = F.linear(x[:, -1:], words.weight).float().softmax(-1)
                    x = words(scores.argmax(-1))
                yield scores.amax()


def seasons_steps(torch):
    """Two models by turns: one makes winter of summer, the other the way back; each is trained on what the other made of a batch, of two sizes."""
    nn, F = torch.nn, torch.nn.functional

    def net(width):
        def block():
            return nn.Sequential(nn.Conv2d(4 * width, 4 * width, 3, 1, 1), nn.InstanceNorm2d(4 * width), nn.ReLU())
        return nn.Sequential(nn.Conv2d(3, width, 7, 1, 3), nn.InstanceNorm2d(width), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.InstanceNorm2d(2 * width), nn.ReLU(),
                             nn.Conv2d(2 * width, 4 * width, 3, 2, 1), nn.InstanceNorm2d(4 * width), nn.ReLU(), block(), block(), block(),
                             nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 3, 7, 1, 3), nn.Tanh()).to(DEVICE)

    torch.manual_seed(0)
    there, back = net(48), net(32)
    o1, o2 = torch.optim.Adam(there.parameters(), 2e-4, (0.5, 0.999)), torch.optim.Adam(back.parameters(), 2e-4, (0.5, 0.999))
    for i in range(1 << 30):
        model, other, optimizer = (there, back, o1) if i % 2 else (back, there, o2)
        x = torch.rand(24 if i % 6 < 4 else 16, 3, 128, 128, device=DEVICE) * 2 - 1
        with torch.no_grad():
            made = other(x)
        loss = F.l1_loss(model(made), x)
        if i % 3 == 0:
            loss = loss + 0.5 * F.l1_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


# ---- written after closer packing --------------------------------------------------------------------------------------------


def llama_steps(torch):
    """torch.compile: a small Llama is trained from scratch, as most do it: bfloat16 by autocast, four batches to a step, gradients clipped, fused AdamW, a rate that
    rises and falls."""
    nn, F = torch.nn, torch.nn.functional
    layers, heads, groups, width, inner, vocab, length, batch, parts = 8, 16, 4, 1024, 2816, 32000, 1024, 6, 4
    part = width // heads

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q, self.k, self.v, self.o = (nn.Linear(a, b, bias=False) for a, b in ((width, width), (width, groups * part), (width, groups * part), (width, width)))
            self.gate, self.up, self.down = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

        def forward(self, x, cos, sin):
            def turned(t, n):
                t = t.view(*t.shape[:2], n, part).transpose(1, 2)
                a, b = t.chunk(2, -1)
                return t * cos + torch.cat((-b, a), -1) * sin

            h = self.n1(x)
            k, v = turned(self.k(h), groups), self.v(h).view(*h.shape[:2], groups, part).transpose(1, 2)
            k, v = (t.repeat_interleave(heads // groups, 1) for t in (k, v))
            a = F.scaled_dot_product_attention(turned(self.q(h), heads).to(v.dtype), k.to(v.dtype), v, is_causal=True)
            x = x + self.o(a.transpose(1, 2).reshape(x.shape))
            h = self.n2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.blocks = nn.Embedding(vocab, width), nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.out = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)
            angles = torch.outer(torch.arange(length), 1e4 ** (-torch.arange(0, part, 2) / part)).repeat(1, 2)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

        def forward(self, text):
            x = self.words(text[:, :-1])
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return F.cross_entropy(self.out(self.norm(x)).float().flatten(0, 1), text[:, 1:].flatten())

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Llama().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, (0.9, 0.95), weight_decay=0.1, fused=True)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-4, 100_000)
    run = torch.compile(model)
    while True:
        for _ in range(parts):
            text = torch.randint(0, vocab, (batch, length + 1)).to(DEVICE, non_blocking=True)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = run(text) / parts
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def prefetch_steps(torch):
    """Side streams and DataLoader workers: torchvision's EfficientNetV2-S, pictures cut by the workers and made ready on a side stream one batch ahead (the prefetcher of many
    training scripts: channels last, normalised, a part of some erased); how many were right leaves on another stream; a slow copy of the weights."""
    F = torch.nn.functional
    from torchvision.models import efficientnet_v2_s

    class Pictures(torch.utils.data.Dataset):
        stored = torch.randint(0, 255, (16, 3, 256, 256), dtype=torch.uint8, generator=torch.Generator().manual_seed(7))

        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            dice = random.Random(i)
            top, left = dice.randrange(32), dice.randrange(32)
            x = self.stored[i % 16, :, top:top + 224, left:left + 224]
            return x.flip(2) if dice.random() < 0.5 else x.clone(), i % 1000

    torch.manual_seed(0)
    model = efficientnet_v2_s().to(DEVICE, memory_format=torch.channels_last)
    slow = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=2e-5, nesterov=True)
    loader = iter(torch.utils.data.DataLoader(Pictures(), 128, num_workers=4, pin_memory=True, persistent_workers=True))
    side, away = torch.cuda.Stream(), torch.cuda.Stream()
    mean, spread = (torch.tensor(v, device=DEVICE).view(1, 3, 1, 1) * 255 for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    dice = random.Random(97)

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(side):
            x, y = x.to(DEVICE, non_blocking=True, memory_format=torch.channels_last), y.to(DEVICE, non_blocking=True)
            x = x.float().sub_(mean).div_(spread)
            for i in dice.sample(range(x.shape[0]), 8):
                top, left, size = dice.randrange(120), dice.randrange(120), dice.randrange(30, 100)
                x[i, :, top:top + size, left:left + size] = torch.randn(3, size, size, device=DEVICE)
        return x, y

    side.wait_stream(torch.cuda.current_stream())
    ahead = fetch()
    while True:
        main = torch.cuda.current_stream()
        main.wait_stream(side)
        x, y = ahead
        x.record_stream(main)
        y.record_stream(main)
        ahead = fetch()
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(x)
            loss = F.cross_entropy(scores, y, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        torch._foreach_lerp_(slow, [p.detach() for p in model.parameters()], 1e-4)
        away.wait_stream(main)
        with torch.cuda.stream(away):
            right = (scores.detach().topk(5, 1).indices == y[:, None]).any(1).float().mean()
            right.to("cpu", non_blocking=True)
        scores.record_stream(away)
        y.record_stream(away)
        del x, y, scores, right
        yield loss.detach()


def rollouts_steps(torch):
    """Inference with growing sequences: answers are drawn for training by reward, eight for every question. Questions of one length are read together, what was read is kept for
    eight rows each and grows by a word at a time; answers that have ended leave, and when few are left the next questions come."""
    nn, F = torch.nn, torch.nn.functional
    layers, heads, groups, width, inner, vocab = 12, 16, 4, 1024, 2816, 32000
    part = width // heads
    torch.manual_seed(0)
    words = nn.Embedding(vocab, width).to(DEVICE).to(torch.bfloat16)
    shapes = ((width, width), (width, 2 * groups * part), (width, width), (width, 2 * inner), (inner, width))
    parts = [[nn.Linear(a, b, bias=False).to(DEVICE).to(torch.bfloat16) for a, b in shapes] for _ in range(layers)]
    dice = random.Random(101)

    def read(x, kept):
        for i, (to_q, to_kv, out, up, down) in enumerate(parts):
            h = F.rms_norm(x, (width,))
            q = to_q(h).view(*h.shape[:2], heads, part).transpose(1, 2)
            k, v = (t.transpose(1, 2) for t in to_kv(h).view(*h.shape[:2], 2, groups, part).unbind(2))
            if kept[i] is not None:
                k, v = torch.cat((kept[i][0], k), 2), torch.cat((kept[i][1], v), 2)
            kept[i] = (k, v)
            k, v = (t.repeat_interleave(heads // groups, 1) for t in (k, v))
            x = x + out(F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1).transpose(1, 2).reshape(x.shape))
            a, b = up(F.rms_norm(x, (width,))).chunk(2, -1)
            x = x + down(F.silu(a) * b)
        return F.linear(F.rms_norm(x[:, -1], (width,)), words.weight).float()

    with torch.no_grad():
        while True:
            questions, length = dice.randrange(8, 25), dice.randrange(64, 768)
            kept = [None] * layers
            scores = read(words(torch.randint(0, vocab, (questions, length), device=DEVICE)), kept)
            kept = [(k.repeat_interleave(8, 0), v.repeat_interleave(8, 0)) for k, v in kept]
            scores, rows, said = scores.repeat_interleave(8, 0), 8 * questions, 0
            begun = rows
            while rows * 4 > begun and said < 160:
                for _ in range(8):  # a step of ours: eight words each
                    word = (scores / 0.8).softmax(-1).multinomial(1)
                    scores = read(words(word), kept)
                said += 8
                stay = sorted(dice.sample(range(rows), max(1, rows - dice.randrange(0, 1 + rows // 6))))
                if len(stay) < rows:
                    order = torch.tensor(stay, device=DEVICE)
                    kept, scores, rows = [(k[order], v[order]) for k, v in kept], scores[order], len(stay)
                yield scores.amax()


def codec_steps(torch):
    """Two models by turns: a variational autoencoder of pictures and torchvision's ResNet18, which is trained on the pictures and on what the autoencoder makes of them; every
    twelfth batch is the rest of the data and smaller."""
    nn, F = torch.nn, torch.nn.functional
    from torchvision.models import resnet18

    def down(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.GroupNorm(8, b), nn.SiLU(), nn.Conv2d(b, b, 3, 1, 1), nn.GroupNorm(8, b), nn.SiLU())

    def up(a, b):
        return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(8, b), nn.SiLU(), nn.Conv2d(b, b, 3, 1, 1), nn.GroupNorm(8, b), nn.SiLU())

    torch.manual_seed(0)
    coder = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), down(32, 64), down(64, 128), down(128, 256), nn.Conv2d(256, 32, 1)).to(DEVICE)
    decoder = nn.Sequential(nn.Conv2d(16, 256, 1), up(256, 128), up(128, 64), up(64, 32), nn.Conv2d(32, 3, 3, 1, 1)).to(DEVICE)
    judge = resnet18(num_classes=200).to(DEVICE)
    o1 = torch.optim.Adam([*coder.parameters(), *decoder.parameters()], 1e-4)
    o2 = torch.optim.SGD(judge.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    def coded(x):
        middle, spread = coder(x).chunk(2, 1)
        return middle, spread, decoder(middle + torch.randn_like(middle) * (0.5 * spread).exp())

    for i in range(1 << 30):
        rows = 40 if i // 2 % 12 == 11 else 64
        x, y = torch.rand(rows, 3, 128, 128, device=DEVICE), torch.randint(0, 200, (rows,), device=DEVICE)
        if i % 2 == 0:
            middle, spread, made = coded(x)
            loss = F.mse_loss(made, x) - 5e-4 * (1 + spread - middle.square() - spread.exp()).mean()
            loss.backward()
            o1.step()
            o1.zero_grad(set_to_none=True)
        else:
            with torch.no_grad():
                made = coded(x)[2]
            loss = F.cross_entropy(judge(torch.cat((x, made))), torch.cat((y, y)))
            loss.backward()
            o2.step()
            o2.zero_grad(set_to_none=True)
        yield loss.detach()


# ---- written after the purge was mended ----------------------------------------------------------------------------------------


def vision_steps(torch):
    """torch.compile: torchvision's ViT-B/16 on pictures of 224, 96 at a time, bfloat16 by autocast, fused AdamW, gradients clipped."""
    nn, F = torch.nn, torch.nn.functional
    from torchvision.models import vit_b_16

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = vit_b_16(dropout=0.1).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.3, fused=True)
    run = torch.compile(model)
    while True:
        x, y = torch.randn(96, 3, 224, 224, device=DEVICE), torch.randint(0, 1000, (96,), device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(run(x), y, label_smoothing=0.11)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def clips_steps(torch):
    """Side streams and DataLoader workers: torchvision's R3D-18 on film clips of sixteen frames, cut by the workers, copied on one side stream and turned to floats there; labels on
    another; the scores of every clip leave on a third."""
    F = torch.nn.functional
    from torchvision.models.video import r3d_18

    class Clips(torch.utils.data.Dataset):
        stored = torch.randint(0, 255, (4, 3, 24, 128, 128), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))

        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            dice = random.Random(i)
            first, top, left = dice.randrange(8), dice.randrange(16), dice.randrange(16)
            return self.stored[i % 4, :, first:first + 16, top:top + 112, left:left + 112].clone(), i % 400

    torch.manual_seed(0)
    model = r3d_18().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    loader = iter(torch.utils.data.DataLoader(Clips(), 32, num_workers=4, pin_memory=True, persistent_workers=True))
    pictures, labels, results = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(pictures):
            x = x.to(DEVICE, non_blocking=True).float().div_(255).sub_(0.43).div_(0.22)
        with torch.cuda.stream(labels):
            y = y.to(DEVICE, non_blocking=True)
        return x, y

    ahead = [fetch(), fetch()]
    while True:
        x, y = ahead.pop(0)
        main = torch.cuda.current_stream()
        for stream, tensor in ((pictures, x), (labels, y)):
            main.wait_stream(stream)
            tensor.record_stream(main)
        ahead.append(fetch())
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        results.wait_stream(main)
        with torch.cuda.stream(results):
            scores.detach().softmax(1).to("cpu", non_blocking=True)
        scores.record_stream(results)
        del x, y, scores, tensor
        yield loss.detach()


def scribe_steps(torch):
    """Inference with growing sequences: speech to text as Whisper does it. Half a minute of sound for each of a batch is read at once; the words are written one by one, by
    attention to what was heard, which stays, and to the words before, which grow; the next batch has another size."""
    nn, F = torch.nn, torch.nn.functional
    layers, heads, width, vocab = 12, 12, 768, 51864
    torch.manual_seed(0)

    def linear(a, b):
        return nn.Linear(a, b).to(DEVICE).half()

    stem = [nn.Conv1d(80, width, 3, padding=1).to(DEVICE).half(), nn.Conv1d(width, width, 3, 2, 1).to(DEVICE).half()]
    places = torch.zeros(1, 1500, width, device=DEVICE, dtype=torch.float16)
    hears = [[linear(width, 3 * width), linear(width, width), linear(width, 4 * width), linear(4 * width, width)] for _ in range(layers)]
    writes = [[linear(width, 3 * width), linear(width, width), linear(width, width), linear(width, 2 * width), linear(width, width), linear(width, 4 * width), linear(4 * width, width)]
              for _ in range(layers)]
    words = nn.Embedding(vocab, width).to(DEVICE).half()
    dice = random.Random(107)

    def split(t):
        return t.view(*t.shape[:2], heads, -1).transpose(1, 2)

    def joined(t, like):
        return t.transpose(1, 2).reshape(like.shape)

    def norm(x):
        return F.layer_norm(x, (width,))

    with torch.no_grad():
        while True:
            rows = dice.randrange(24, 65)
            x = torch.randn(rows, 80, 3000, device=DEVICE, dtype=torch.float16)
            for conv in stem:
                x = F.gelu(conv(x))
            x = x.transpose(1, 2) + places
            for qkv, out, up, down in hears:
                x = x + out(joined(F.scaled_dot_product_attention(*(split(t) for t in qkv(norm(x)).chunk(3, 2))), x))
                x = x + down(F.gelu(up(norm(x))))
            heard = [[split(t) for t in w[3](norm(x)).chunk(2, 2)] for w in writes]
            kept, x = [None] * layers, words(torch.randint(0, vocab, (rows, 4), device=DEVICE))
            for _ in range(dice.randrange(3, 9)):  # a step of ours: sixteen words each
                for _ in range(16):
                    for i, (qkv, out, q, _, back, up, down) in enumerate(writes):
                        a, k, v = (split(t) for t in qkv(norm(x)).chunk(3, 2))
                        if kept[i] is not None:
                            k, v = torch.cat((kept[i][0], k), 2), torch.cat((kept[i][1], v), 2)
                        kept[i] = (k, v)
                        x = x + out(joined(F.scaled_dot_product_attention(a, k, v, is_causal=x.shape[1] > 1), x))
                        x = x + back(joined(F.scaled_dot_product_attention(split(q(norm(x))), *heard[i]), x))
                        x = x + down(F.gelu(up(norm(x))))
                    scores = F.linear(norm(x[:, -1:]), words.weight).float().log_softmax(-1)
                    x = words(scores.argmax(-1))
                yield scores.amax()


def folds_steps(torch):
    """Two models by turns: torchvision's ResNet50 and ConvNeXt-Tiny are trained side by side on the same kind of pictures, to be compared; after every tenth step of both there is a
    test of both on a larger batch."""
    F = torch.nn.functional
    from torchvision.models import convnext_tiny, resnet50

    torch.manual_seed(0)
    models = [m(num_classes=100).to(DEVICE, memory_format=torch.channels_last) for m in (resnet50, convnext_tiny)]
    optimizers = [torch.optim.SGD(models[0].parameters(), 0.1, momentum=0.9), torch.optim.AdamW(models[1].parameters(), 1e-3)]

    def batch(rows):
        x = torch.randn(rows, 3, 192, 192, device=DEVICE).to(memory_format=torch.channels_last)
        return x, torch.randint(0, 100, (rows,), device=DEVICE)

    while True:
        for _ in range(10):
            for model, optimizer in zip(models, optimizers):
                x, y = batch(96)
                with torch.autocast(DEVICE, torch.bfloat16):
                    loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                yield loss.detach()
        for model in models:
            x, y = batch(256)
            model.eval()
            with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            model.train()
            yield loss


# Part: the loop, steps before the first timed one, steps a turn, turns.
FRESH = {"blades": (blades_steps, 28, 14, 8), "depth": (depth_steps, 30, 12, 8), "answers": (answers_steps, 20, 8, 8), "seasons": (seasons_steps, 36, 12, 8),
         "codec": (codec_steps, 48, 24, 60), "prefetch": (prefetch_steps, 30, 8, 60), "rollouts": (rollouts_steps, 12, 2, 60), "llama": (llama_steps, 12, 6, 60),
         "folds": (folds_steps, 44, 22, 60), "clips": (clips_steps, 24, 8, 60), "scribe": (scribe_steps, 24, 8, 60), "vision": (vision_steps, 12, 8, 60)}
