"""The training and inference loops that bench/torch_streams.py measures: generators, one step each.

Four were there when the pool's rule for moving pages was made (cnn, gpt2, growing, turns). Four were chosen when it was
first finished (vit, masks, lengths, rivals) and served to mend it. Four were written after that (mixer, speech, beams, pupil) and first
run when steps that repeat were packed again; their recordings were looked at, but nothing was changed for them. Two were written when that
was finished (denoise, tagger).

The file is long because it is a list of workloads.
"""
import random

DEVICE = "cuda"


def cnn_steps(torch):
    """A generator: one training step each."""
    nn = torch.nn

    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            g = torch.Generator().manual_seed(i)
            return torch.randint(0, 255, (3, 96, 96), dtype=torch.uint8, generator=g), i % 10

    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True), nn.MaxPool2d(2))

    model = nn.Sequential(block(3, 32), block(32, 64), block(64, 128), block(128, 256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    loader = iter(torch.utils.data.DataLoader(Pictures(), 128, num_workers=4, pin_memory=True, persistent_workers=True))
    side = torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(side):
            return x.cuda(non_blocking=True).float().div_(255), y.cuda(non_blocking=True)

    ahead = [fetch(), fetch()]
    while True:
        x, y = ahead.pop(0)
        torch.cuda.current_stream().wait_stream(side)
        x.record_stream(torch.cuda.current_stream())
        y.record_stream(torch.cuda.current_stream())
        ahead.append(fetch())
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del x, y
        yield loss


def gpt2_steps(torch):
    nn, F = torch.nn, torch.nn.functional
    layers, heads, width, vocab, length, batch = 12, 12, 768, 50304, 1024, 8

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (s.view(b, t, heads, c // heads).transpose(1, 2) for s in self.qkv(self.n1(x)).split(width, 2))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
            x = x + self.proj(a)
            return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
            self.out.weight = self.tokens.weight

        def forward(self, t, want):
            x = self.tokens(t) + self.places(torch.arange(t.shape[1], device=t.device))
            for b in self.blocks:
                x = b(x)
            return F.cross_entropy(self.out(self.norm(x)).flatten(0, 1), want.flatten())

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    run = torch.compile(model)
    while True:
        t = torch.randint(0, vocab, (batch, length + 1), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(t[:, :-1].contiguous(), t[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss


def growing_steps(torch):
    """Inference: text is generated with a cache of keys and values that grows by a token a step, several requests at a time that
    begin at different moments and end at different lengths."""
    nn, F = torch.nn, torch.nn.functional
    layers, heads, width = 8, 16, 1024
    torch.manual_seed(0)
    weights = [(nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)) for _ in range(layers)]
    for ws in weights:
        for w in ws:
            w.cuda().to(torch.bfloat16).requires_grad_(False)
    lengths = random.Random(3)
    requests = []
    while True:
        if len(requests) < 6 and (not requests or lengths.random() < 0.5):
            prompt, most = lengths.randrange(64, 900), lengths.randrange(8, 96)
            requests.append([most, [None] * layers, torch.randn(4, prompt, width, device="cuda", dtype=torch.bfloat16)])
        for r in requests:
            x = r[2]
            for i, (qkv, proj, up, down) in enumerate(weights):
                q, k, v = (t.view(4, -1, heads, width // heads).transpose(1, 2) for t in qkv(F.layer_norm(x, (width,))).split(width, 2))
                if r[1][i] is not None:
                    k, v = torch.cat((r[1][i][0], k), 2), torch.cat((r[1][i][1], v), 2)
                r[1][i] = (k, v)
                a = F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1).transpose(1, 2).reshape(x.shape)
                x = x + proj(a)
                x = x + down(F.gelu(up(F.layer_norm(x, (width,)))))
            r[0], r[2] = r[0] - 1, x[:, -1:].clone()
        last = requests[0][2].sum()
        requests = [r for r in requests if r[0]]
        yield last


def models_by_turns(torch):
    """Two models of different kinds are trained in one process, two steps of the one, then one of the other."""
    nn, F = torch.nn, torch.nn.functional
    torch.manual_seed(0)

    def unet(depth, a, b):
        inner = nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU())
        if not depth:
            return inner
        return nn.Sequential(inner, nn.MaxPool2d(2), unet(depth - 1, b, 2 * b), nn.Conv2d(2 * b, b, 3, padding=1),
                             nn.Upsample(scale_factor=2), nn.Conv2d(b, b, 3, padding=1), nn.SiLU())

    pictures = nn.Sequential(unet(3, 3, 32), nn.Conv2d(32, 3, 1)).cuda()
    words = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, 0.1, batch_first=True), 6).cuda()
    sizes = random.Random(5)
    o1, o2 = torch.optim.AdamW(pictures.parameters()), torch.optim.AdamW(words.parameters())
    for i in range(1 << 30):
        model, optimizer = (words, o2) if i % 3 == 2 else (pictures, o1)
        x = torch.randn(16, 96 + 32 * sizes.randrange(5), 512, device="cuda") if i % 3 == 2 else torch.randn(24, 3, 256, 256, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.mse_loss(model(x).float(), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss


def vit_steps(torch):
    """A vision transformer under torch.compile, the batch drawn anew every step: the compiled graph serves two sizes."""
    nn, F = torch.nn, torch.nn.functional
    width, heads, layers = 512, 8, 6

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (s.view(b, t, heads, c // heads).transpose(1, 2) for s in self.qkv(self.n1(x)).split(width, 2))
            x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c))
            return x + self.mlp(self.n2(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, width, 16, 16)
            self.places = nn.Parameter(torch.zeros(1, 196, width))
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.out = nn.Linear(width, 1000)

        def forward(self, x, y):
            x = self.patches(x).flatten(2).transpose(1, 2) + self.places
            return F.cross_entropy(self.out(self.blocks(x).mean(1)), y)

    torch.manual_seed(0)
    model = Model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    run = torch.compile(model, dynamic=False)
    for i in range(1 << 30):
        batch = 96 if i % 4 else 64
        x, y = torch.randn(batch, 3, 224, 224, device=DEVICE), torch.arange(batch, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = run(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss


def masks_steps(torch):
    """Segmentation: pictures come from DataLoader workers on one side stream, masks on another, results leave on a third."""
    nn, F = torch.nn, torch.nn.functional

    class Scenes(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            g = torch.Generator().manual_seed(i)
            return torch.randint(0, 255, (3, 160, 160), dtype=torch.uint8, generator=g), torch.randint(0, 8, (160, 160), dtype=torch.uint8, generator=g)

    def conv(a, b, stride=1):
        return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.1))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList([conv(3, 32), conv(32, 64, 2), conv(64, 128, 2), conv(128, 256, 2)])
            self.up = nn.ModuleList([conv(256 + 128, 128), conv(128 + 64, 64), conv(64 + 32, 32)])
            self.out = nn.Conv2d(32, 8, 1)

        def forward(self, x):
            seen = []
            for d in self.down:
                x = d(x)
                seen.append(x)
            for u, s in zip(self.up, seen[-2::-1]):
                x = u(torch.cat((F.interpolate(x, scale_factor=2), s), 1))
            return self.out(x)

    torch.manual_seed(0)
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = iter(torch.utils.data.DataLoader(Scenes(), 32, num_workers=4, pin_memory=True, persistent_workers=True))
    pictures, masks, results = (torch.cuda.Stream() for _ in range(3))

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(pictures):
            x = x.cuda(non_blocking=True).float().div_(255)
        with torch.cuda.stream(masks):
            y = y.cuda(non_blocking=True).long()
        return x, y

    ahead = [fetch()]
    while True:
        ahead.append(fetch())
        x, y = ahead.pop(0)
        main = torch.cuda.current_stream()
        for stream, tensor in ((pictures, x), (masks, y)):
            main.wait_stream(stream)
            tensor.record_stream(main)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        results.wait_stream(main)
        with torch.cuda.stream(results):
            kept = logits.detach().argmax(1).to(torch.uint8)
            kept.to("cpu", non_blocking=True)
        logits.record_stream(results)
        del x, y, logits, kept
        yield loss


def lengths_steps(torch):
    """Inference without a cache: several texts are read anew as they grow, and all next words' scores are made."""
    nn = torch.nn
    vocab, width = 32000, 768
    torch.manual_seed(0)
    words = nn.Embedding(vocab, width).to(DEVICE).to(torch.bfloat16)
    layer = nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).to(DEVICE).to(torch.bfloat16).eval()
    out = nn.Linear(width, vocab).to(DEVICE).to(torch.bfloat16)
    dice = random.Random(11)
    texts = []
    while True:
        if len(texts) < 4:
            texts.append([torch.randint(0, vocab, (dice.randrange(1, 5), dice.randrange(40, 300)), device=DEVICE), dice.randrange(10, 60)])
        with torch.no_grad():
            for text in texts:
                scores = out(body(words(text[0]))).float().log_softmax(-1)
                text[0] = torch.cat((text[0], scores[:, -1:].argmax(-1), scores[:, -9:-1].argmax(-1)), 1)
                text[1] -= 1
        texts = [t for t in texts if t[1]]
        yield scores.sum()


def rivals_steps(torch):
    """Two models by turns: a generator and a discriminator, with a penalty on the gradient every fourth step."""
    nn, F = torch.nn, torch.nn.functional

    def up(a, b):
        return nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True))

    def down(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2, True))

    torch.manual_seed(0)
    maker = nn.Sequential(nn.ConvTranspose2d(128, 512, 4), nn.ReLU(True), up(512, 256), up(256, 128), up(128, 64), up(64, 32), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh()).to(DEVICE)
    judge = nn.Sequential(down(3, 32), down(32, 64), down(64, 128), down(128, 256), down(256, 512), nn.Conv2d(512, 1, 4), nn.Flatten()).to(DEVICE)
    o1, o2 = torch.optim.Adam(maker.parameters(), 2e-4, (0.5, 0.9)), torch.optim.Adam(judge.parameters(), 2e-4, (0.5, 0.9))
    for i in range(1 << 30):
        real = torch.randn(96, 3, 128, 128, device=DEVICE)
        fake = maker(torch.randn(96, 128, 1, 1, device=DEVICE))
        if i % 2:
            loss = F.softplus(-judge(fake)).mean()
            loss.backward()
            o1.step()
        else:
            if i % 4 == 0:
                real.requires_grad_(True)
            verdict = judge(real)
            loss = F.softplus(judge(fake.detach())).mean() + F.softplus(-verdict).mean()
            if i % 4 == 0:
                (slope,) = torch.autograd.grad(verdict.sum(), real, create_graph=True)
                loss = loss + 5 * slope.square().sum((1, 2, 3)).mean()
            loss.backward()
            o2.step()
        o1.zero_grad(set_to_none=True)
        o2.zero_grad(set_to_none=True)
        yield loss


def mixer_steps(torch):
    """An MLP-Mixer under torch.compile: no attention, transposes between two kinds of mixing, label smoothing, gradient clipping."""
    nn, F = torch.nn, torch.nn.functional
    places, width, layers = 256, 384, 4

    class Mix(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.across = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
            self.along = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.across(self.n1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.along(self.n2(x))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3 * 14 * 14, width), *(Mix() for _ in range(layers)), nn.LayerNorm(width)).to(DEVICE)
    head = nn.Linear(width, 1000).to(DEVICE)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.NAdam(parameters, 1e-4)
    run = torch.compile(lambda x, y: F.cross_entropy(head(model(x).mean(1)), y, label_smoothing=0.1), dynamic=False)
    while True:
        x = torch.randn(192, places, 3 * 14 * 14, device=DEVICE)
        loss = run(x, torch.randint(0, 1000, (192,), device=DEVICE))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss


def speech_steps(torch):
    """Sound of different lengths from DataLoader workers on one side stream, labels on another: convolutions, then a GRU both ways."""
    nn, F = torch.nn, torch.nn.functional

    class Sounds(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            g = torch.Generator().manual_seed(i)
            return torch.randn(16000, generator=g), torch.randint(1, 40, (20,), generator=g)

    def collate(batch):
        sounds, words = zip(*batch)
        length = 8000 + 1600 * (int(words[0][0]) % 6)  # a batch's own length
        return torch.stack([s[:length] for s in sounds]), torch.stack(words)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.ear = nn.Sequential(nn.Conv1d(1, 64, 15, 4, 7), nn.ReLU(), nn.Conv1d(64, 128, 9, 4, 4), nn.ReLU(), nn.Conv1d(128, 256, 5, 2, 2), nn.ReLU())
            self.memory = nn.GRU(256, 256, 2, batch_first=True, bidirectional=True)
            self.out = nn.Linear(512, 40)

        def forward(self, x):
            return self.out(self.memory(self.ear(x[:, None]).transpose(1, 2))[0])

    torch.manual_seed(0)
    model = Net().to(DEVICE)
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-4)
    loader = iter(torch.utils.data.DataLoader(Sounds(), 96, num_workers=4, pin_memory=True, persistent_workers=True, collate_fn=collate))
    hear, read = torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(hear):
            x = x.to(DEVICE, non_blocking=True)
            x = (x - x.mean(1, True)) / x.std(1, keepdim=True)
        with torch.cuda.stream(read):
            y = y.to(DEVICE, non_blocking=True)
        return x, y

    ahead = [fetch(), fetch(), fetch()]
    while True:
        x, y = ahead.pop(0)
        main = torch.cuda.current_stream()
        for stream, tensor in ((hear, x), (read, y)):
            main.wait_stream(stream)
            tensor.record_stream(main)
        ahead.append(fetch())
        scores = model(x).log_softmax(-1).transpose(0, 1)
        steps = torch.full((y.shape[0],), scores.shape[0], dtype=torch.long, device=DEVICE)
        loss = F.ctc_loss(scores, y, steps, torch.full_like(steps, y.shape[1]), zero_infinity=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del x, y, scores, steps
        yield loss


def beams_steps(torch):
    """Inference: a translation by beam search. The caches of keys and values grow by a word a step and are put in another order by the
    beams that live on; texts of other lengths come after."""
    nn, F = torch.nn, torch.nn.functional
    vocab, width, heads, groups, layers, beams = 16000, 512, 8, 2, 6, 4
    torch.manual_seed(0)
    words = nn.Embedding(vocab, width).to(DEVICE).half()
    part = width // heads
    blocks = [[nn.Linear(a, b, bias=False).to(DEVICE).half() for a, b in ((width, width), (width, 2 * groups * part), (width, width), (width, 3 * width), (3 * width, width))] for _ in range(layers)]
    dice = random.Random(17)
    while True:
        rows, prompt, most = dice.randrange(4, 17), dice.randrange(30, 400), dice.randrange(20, 60)
        token = torch.randint(0, vocab, (rows * beams, prompt), device=DEVICE)
        caches, score = [None] * layers, torch.zeros(rows * beams, device=DEVICE)
        for _ in range(most):
            with torch.no_grad():
                x = words(token)
                for i, (q, kv, o, up, down) in enumerate(blocks):
                    h = F.layer_norm(x, (width,))
                    a = q(h).view(*h.shape[:2], heads, part).transpose(1, 2)
                    k, v = kv(h).view(*h.shape[:2], 2, groups, part).unbind(2)
                    k, v = k.transpose(1, 2), v.transpose(1, 2)
                    if caches[i] is not None:
                        k, v = torch.cat((caches[i][0], k), 2), torch.cat((caches[i][1], v), 2)
                    caches[i] = (k, v)
                    wide = [t.repeat_interleave(heads // groups, 1) for t in (k, v)]
                    a = F.scaled_dot_product_attention(a, *wide, is_causal=x.shape[1] > 1)
                    x = x + o(a.transpose(1, 2).reshape(x.shape))
                    x = x + down(F.silu(up(F.layer_norm(x, (width,)))))
                scores = F.linear(x[:, -1], words.weight).float().log_softmax(-1) + score[:, None]
                score, best = scores.view(rows, -1).topk(beams)
                order = (best // vocab + torch.arange(rows, device=DEVICE)[:, None] * beams).view(-1)
                token, score = (best % vocab).view(-1, 1), score.view(-1)
                caches = [(k[order], v[order]) for k, v in caches]
            yield score.sum()


def pupil_steps(torch):
    """Two models by turns: a teacher with dense connections is trained on two batches, then a pupil of separable convolutions on what the
    teacher says of a larger one; a slow copy of the pupil follows."""
    nn, F = torch.nn, torch.nn.functional

    class Dense(nn.Module):
        def __init__(self, a, layers, grow):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.BatchNorm2d(a + i * grow), nn.ReLU(), nn.Conv2d(a + i * grow, grow, 3, 1, 1, bias=False)) for i in range(layers))

        def forward(self, x):
            for layer in self.layers:
                x = torch.cat((x, layer(x)), 1)
            return x

    def separable(a, b, stride):
        return nn.Sequential(nn.Conv2d(a, a, 5, stride, 2, groups=a, bias=False), nn.BatchNorm2d(a), nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.Hardswish())

    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Conv2d(3, 48, 3, 2, 1), Dense(48, 6, 24), nn.Conv2d(192, 96, 1), nn.AvgPool2d(2), Dense(96, 6, 24), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(240, 100)).to(DEVICE)
    pupil = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), separable(32, 64, 1), separable(64, 128, 2), separable(128, 128, 1), separable(128, 256, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100)).to(DEVICE)
    slow = [p.detach().clone() for p in pupil.parameters()]
    o1, o2 = torch.optim.SGD(teacher.parameters(), 0.01, momentum=0.9), torch.optim.AdamW(pupil.parameters(), 1e-3)
    dice = random.Random(23)
    for i in range(1 << 30):
        if i % 3 < 2:
            x = torch.randn(48, 3, 112, 112, device=DEVICE)
            loss = F.cross_entropy(teacher(x), torch.randint(0, 100, (48,), device=DEVICE))
            loss.backward()
            o1.step()
            o1.zero_grad(set_to_none=True)
        else:
            x = torch.randn(32 * dice.randrange(2, 5), 3, 112, 112, device=DEVICE)
            with torch.no_grad():
                said = teacher(x).softmax(1)
            loss = F.kl_div(pupil(x).log_softmax(1), said, reduction="batchmean")
            loss.backward()
            o2.step()
            o2.zero_grad(set_to_none=True)
            torch._foreach_lerp_(slow, [p.detach() for p in pupil.parameters()], 0.01)
        yield loss


def denoise_steps(torch):
    """A denoising U-Net with attention in its middle and a slow copy of itself; pictures come from DataLoader workers on a side stream."""
    nn, F = torch.nn, torch.nn.functional

    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            return torch.randint(0, 255, (3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(i))

    class Part(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.n1, self.c1, self.n2, self.c2 = nn.GroupNorm(4, a), nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(8, b), nn.Conv2d(b, b, 3, 1, 1)
            self.t, self.skip = nn.Linear(128, b), nn.Conv2d(a, b, 1)

        def forward(self, x, t):
            h = self.c1(F.silu(self.n1(x))) + self.t(t)[:, :, None, None]
            return self.skip(x) + self.c2(F.silu(self.n2(h)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.time = nn.Conv2d(3, 48, 3, 1, 1), nn.Linear(128, 128)
            self.d1, self.d2, self.middle = Part(48, 48), Part(48, 96), Part(96, 96)
            self.attend = nn.MultiheadAttention(96, 4, batch_first=True)
            self.u2, self.u1, self.last = Part(192, 48), Part(96, 48), nn.Conv2d(48, 3, 3, 1, 1)

        def forward(self, x, t):
            t = F.silu(self.time(torch.cat((torch.sin(t[:, None] * torch.arange(64, device=t.device)), torch.cos(t[:, None] * torch.arange(64, device=t.device))), 1)))
            a = self.d1(self.first(x), t)
            b = self.d2(F.avg_pool2d(a, 2), t)
            c = self.middle(F.avg_pool2d(b, 2), t)
            w = c.flatten(2).transpose(1, 2)
            c = c + self.attend(w, w, w, need_weights=False)[0].transpose(1, 2).reshape(c.shape)
            b = self.u2(torch.cat((F.interpolate(c, scale_factor=2), b), 1), t)
            return self.last(self.u1(torch.cat((F.interpolate(b, scale_factor=2), a), 1), t))

    torch.manual_seed(0)
    model = Net().to(DEVICE)
    slow = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    loader = iter(torch.utils.data.DataLoader(Pictures(), 96, num_workers=4, pin_memory=True, persistent_workers=True))
    side = torch.cuda.Stream()

    def fetch():
        x = next(loader)
        with torch.cuda.stream(side):
            return x.to(DEVICE, non_blocking=True).float().div_(127.5).sub_(1)

    ahead = [fetch(), fetch()]
    while True:
        x = ahead.pop(0)
        torch.cuda.current_stream().wait_stream(side)
        x.record_stream(torch.cuda.current_stream())
        ahead.append(fetch())
        t, noise = torch.rand(x.shape[0], device=DEVICE), torch.randn_like(x)
        mixed = x * (1 - t)[:, None, None, None] + noise * t[:, None, None, None]
        loss = F.mse_loss(model(mixed, t), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch._foreach_lerp_(slow, [p.detach() for p in model.parameters()], 0.001)
        del x, t, noise, mixed
        yield loss


def tagger_steps(torch):
    """Texts in batches of about as many words, whatever their length: characters through convolutions, words through an LSTM both ways."""
    nn, F = torch.nn, torch.nn.functional
    torch.manual_seed(0)
    letters, words = nn.Embedding(96, 32).to(DEVICE), nn.Embedding(30000, 256).to(DEVICE)
    shapes = nn.Conv1d(32, 128, 3, padding=1).to(DEVICE)
    body, out = nn.LSTM(384, 384, 2, batch_first=True, bidirectional=True, dropout=0.1).to(DEVICE), nn.Linear(768, 60).to(DEVICE)
    parameters = [p for m in (letters, words, shapes, body, out) for p in m.parameters()]
    optimizer = torch.optim.Adagrad(parameters, 0.01)
    dice = random.Random(31)
    while True:
        length = dice.randrange(8, 65)
        rows = 4096 // length
        text = torch.randint(0, 96, (rows * length, 12), device=DEVICE)
        spelt = F.relu(shapes(letters(text).transpose(1, 2))).amax(2).view(rows, length, 128)
        x = torch.cat((words(torch.randint(0, 30000, (rows, length), device=DEVICE)), spelt), 2)
        loss = F.cross_entropy(out(body(x)[0]).flatten(0, 1), torch.randint(0, 60, (rows * length,), device=DEVICE))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss


def tables_steps(torch):
    """torch.compile: a network on tables, with embeddings of many columns, gated blocks and two heads; every eighth step is a test on a larger batch."""
    nn, F = torch.nn, torch.nn.functional

    class Gated(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.both, self.back = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

        def forward(self, x):
            a, b = self.both(self.norm(x)).chunk(2, -1)
            return x + self.back(F.silu(a) * b)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.columns = nn.Embedding(40 * 1000, 24)
            self.first = nn.Linear(40 * 24 + 64, 768)
            self.blocks = nn.Sequential(*(Gated(768) for _ in range(4)))
            self.value, self.kind = nn.Linear(768, 1), nn.Linear(768, 50)

        def forward(self, c, n):
            x = self.blocks(self.first(torch.cat((self.columns(c).flatten(1), n), 1)))
            return self.value(x)[:, 0], self.kind(x)

    torch.manual_seed(0)
    model = Net().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    run = torch.compile(model, dynamic=False)
    offsets = torch.arange(40, device=DEVICE) * 1000
    for i in range(1 << 30):
        rows = 8192 if i % 8 != 7 else 12288
        c, n = torch.randint(0, 1000, (rows, 40), device=DEVICE) + offsets, torch.randn(rows, 64, device=DEVICE)
        with torch.set_grad_enabled(rows == 8192):
            value, kind = run(c, n)
            loss = F.mse_loss(value, n.sum(1)) + F.cross_entropy(kind, c[:, 0] % 50)
        if rows == 8192:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def twins_steps(torch):
    """Two views of each picture come from DataLoader workers on two side streams, are turned and cut there, and are told apart from the others' by a
    contrastive loss; a slow copy of the network reads the second view."""
    nn, F = torch.nn, torch.nn.functional

    class Views(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            g = torch.Generator().manual_seed(i)
            return torch.randint(0, 255, (3, 80, 80), dtype=torch.uint8, generator=g)

    def part(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.GELU(), nn.Conv2d(b, b, 3, 1, 1), nn.BatchNorm2d(b), nn.GELU())

    def net():
        return nn.Sequential(part(3, 64), part(64, 128), part(128, 256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 128)).to(DEVICE)

    torch.manual_seed(0)
    model, slow = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    loader = iter(torch.utils.data.DataLoader(Views(), 160, num_workers=4, pin_memory=True, persistent_workers=True))
    sides = torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x = next(loader)
        views = []
        for i, side in enumerate(sides):
            with torch.cuda.stream(side):
                v = x.to(DEVICE, non_blocking=True).float().div_(255)
                v = v.flip(3) if i else v
                views.append(v[:, :, 4:76, 4:76].contiguous())
        return views

    ahead = [fetch(), fetch()]
    while True:
        views = ahead.pop(0)
        main = torch.cuda.current_stream()
        for side, v in zip(sides, views):
            main.wait_stream(side)
            v.record_stream(main)
        ahead.append(fetch())
        a = F.normalize(model(views[0]), dim=1)
        with torch.no_grad():
            b = F.normalize(slow(views[1]), dim=1)
        loss = F.cross_entropy(a @ b.t() / 0.1, torch.arange(a.shape[0], device=DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(slow.parameters()), list(model.parameters()), 0.01)
        del views, a, b, v
        yield loss


def dialog_steps(torch):
    """Inference: conversations whose memory of keys and values grows by a turn of some words at a time and is cut to a window; they begin and end at
    different times."""
    nn, F = torch.nn, torch.nn.functional
    layers, heads, width, window, vocab = 6, 12, 768, 1500, 24000
    torch.manual_seed(0)
    words = nn.Embedding(vocab, width).to(DEVICE).half()
    blocks = [[nn.Linear(a, b).to(DEVICE).half() for a, b in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))] for _ in range(layers)]
    dice = random.Random(41)
    talks = []
    while True:
        if len(talks) < 5 and dice.random() < 0.7 or not talks:
            talks.append([[None] * layers, dice.randrange(2, 7), dice.randrange(6, 30)])
        for talk in talks:
            with torch.no_grad():
                x = words(torch.randint(0, vocab, (talk[1], dice.randrange(10, 200)), device=DEVICE))
                for i, (qkv, out, up, down) in enumerate(blocks):
                    q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in qkv(F.layer_norm(x, (width,))).split(width, 2))
                    if talk[0][i]:
                        k, v = torch.cat((talk[0][i][0], k), 2), torch.cat((talk[0][i][1], v), 2)
                    talk[0][i] = k[:, :, -window:].contiguous(), v[:, :, -window:].contiguous()
                    x = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
                    x = x + down(F.gelu(up(F.layer_norm(x, (width,)))))
                scores = F.linear(x[:, -1], words.weight).float().softmax(-1)
            talk[2] -= 1
        talks = [t for t in talks if t[2]]
        yield scores.sum()


def actor_steps(torch):
    """Two models by turns: an actor plays a number of rounds without gradients, then actor and critic are trained on what was played, in parts of
    two sizes."""
    nn, F = torch.nn, torch.nn.functional

    def eyes():
        return nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU())

    torch.manual_seed(0)
    actor, critic = nn.Sequential(eyes(), nn.Linear(512, 18)).to(DEVICE), nn.Sequential(eyes(), nn.Linear(512, 1)).to(DEVICE)
    o1, o2 = torch.optim.Adam(actor.parameters(), 2e-4), torch.optim.RMSprop(critic.parameters(), 5e-4)
    dice = random.Random(43)
    while True:
        seen, taken = [], []
        for _ in range(dice.choice((6, 8, 10))):
            with torch.no_grad():
                x = torch.rand(256, 4, 84, 84, device=DEVICE)
                taken.append(actor(x).softmax(1).multinomial(1)[:, 0])
                seen.append(x)
        seen, taken = torch.cat(seen), torch.cat(taken)
        gained = torch.randn(seen.shape[0], device=DEVICE)
        part = dice.choice((512, 1024))
        for i in range(0, seen.shape[0], part):
            x, t, g = seen[i:i + part], taken[i:i + part], gained[i:i + part]
            value = critic(x)[:, 0]
            loss = F.smooth_l1_loss(value, g)
            loss.backward()
            o2.step()
            o2.zero_grad(set_to_none=True)
            chance = actor(x).log_softmax(1).gather(1, t[:, None])[:, 0]
            loss = -(chance * (g - value.detach())).mean()
            loss.backward()
            o1.step()
            o1.zero_grad(set_to_none=True)
        yield loss


# Part: the loop, steps before the first timed one, steps a turn, turns.
WORKLOADS = {"cnn": (cnn_steps, 30, 20, 9), "gpt2": (gpt2_steps, 12, 10, 12), "growing": (growing_steps, 24, 12, 8), "turns": (models_by_turns, 30, 24, 8),
             "vit": (vit_steps, 16, 16, 8), "masks": (masks_steps, 30, 20, 9), "lengths": (lengths_steps, 30, 20, 8), "rivals": (rivals_steps, 32, 24, 8),
             "mixer": (mixer_steps, 16, 16, 8), "speech": (speech_steps, 30, 20, 9), "beams": (beams_steps, 60, 40, 8), "pupil": (pupil_steps, 30, 24, 8),
             "denoise": (denoise_steps, 30, 20, 8), "tagger": (tagger_steps, 40, 24, 8),
             "tables": (tables_steps, 24, 16, 8), "twins": (twins_steps, 30, 20, 8), "dialog": (dialog_steps, 24, 12, 8), "actor": (actor_steps, 20, 10, 8)}
