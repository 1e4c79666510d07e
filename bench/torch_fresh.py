"""Training and inference loops written after the pool's rules were finished (packing from the fullest moment was the last): nothing was changed for
them. As in torch_models.py each is a generator, one step each; bench/torch_streams.py measures them.
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


# Part: the loop, steps before the first timed one, steps a turn, turns.
FRESH = {"blades": (blades_steps, 28, 14, 8), "depth": (depth_steps, 30, 12, 8), "answers": (answers_steps, 20, 8, 8), "seasons": (seasons_steps, 36, 12, 8)}
