"""Training and inference loops written before the pool's last rules for packing steps and first run with them: nothing was changed for them. As in
torch_models.py each is a generator, one step each; bench/torch_streams.py measures them.
"""
import random

DEVICE = "cuda"


def captions_steps(torch):
    """torch.compile: pictures are read by convolutions, a decoder with attention writes a line about each; every sixth batch is a test
    with lines twice as long."""
    nn, F = torch.nn, torch.nn.functional

    class Decoder(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.n1, self.n2, self.n3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.q, self.kv, self.back = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def split(self, x):
            return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

        def forward(self, x, seen):
            q, k, v = (self.split(t) for t in self.qkv(self.n1(x)).chunk(3, -1))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
            k, v = (self.split(t) for t in self.kv(seen).chunk(2, -1))
            x = x + self.back(F.scaled_dot_product_attention(self.split(self.q(self.n2(x))), k, v).transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.n3(x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = (3, 48, 96, 192, 384)
            self.eyes = nn.Sequential(*(nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.SiLU()) for a, b in zip(sizes, sizes[1:])))
            self.words, self.places = nn.Embedding(12000, 384), nn.Parameter(torch.zeros(1, 96, 384))
            self.layers = nn.ModuleList(Decoder(384, 6) for _ in range(2))
            self.last = nn.Linear(384, 12000)

        def forward(self, pictures, text):
            seen = self.eyes(pictures).flatten(2).transpose(1, 2)
            x = self.words(text) + self.places[:, :text.shape[1]]
            for layer in self.layers:
                x = layer(x, seen)
            return self.last(x)

    torch.manual_seed(0)
    model = Net().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    run = torch.compile(model, dynamic=False)
    for i in range(1 << 30):
        test = i % 6 == 5
        pictures, text = torch.randn(64, 3, 128, 128, device=DEVICE), torch.randint(0, 12000, (64, 80 if test else 40), device=DEVICE)
        with torch.set_grad_enabled(not test), torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(run(pictures, text).float().flatten(0, 1), text.flatten())
        if not test:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def tiles_steps(torch):
    """Side streams and DataLoader workers: tiles of large pictures come on one stream with what is to be found in them, of which there are
    more or fewer; scores are copied back on another."""
    nn, F = torch.nn, torch.nn.functional

    class Tiles(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            g = torch.Generator().manual_seed(i)
            found = 2 + i * 7919 % 30
            return torch.randint(0, 255, (4, 128, 128), dtype=torch.uint8, generator=g), torch.rand(found, 5, generator=g)

    def together(items):
        return torch.stack([x for x, _ in items]), torch.cat([torch.cat((torch.full((len(y), 1), float(i)), y), 1) for i, (_, y) in enumerate(items)])

    def part(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(8, b), nn.ReLU(), nn.Conv2d(b, b, 3, 2, 1), nn.GroupNorm(8, b), nn.ReLU())

    torch.manual_seed(0)
    p1, p2, p3, p4 = (part(a, b).to(DEVICE) for a, b in ((4, 32), (32, 64), (64, 128), (128, 256)))
    from4, from3, head = nn.Conv2d(256, 96, 1).to(DEVICE), nn.Conv2d(128, 96, 1).to(DEVICE), nn.Conv2d(96, 6, 3, 1, 1).to(DEVICE)
    parameters = [p for m in (p1, p2, p3, p4, from4, from3, head) for p in m.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.01, momentum=0.9)
    loader = iter(torch.utils.data.DataLoader(Tiles(), 72, num_workers=4, pin_memory=True, persistent_workers=True, collate_fn=together))
    side, away = torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(side):
            x = x.to(DEVICE, non_blocking=True).float().div_(255)
            return x - x.mean((2, 3), keepdim=True), y.to(DEVICE, non_blocking=True)

    ahead = [fetch(), fetch(), fetch()]
    while True:
        x, y = ahead.pop(0)
        main = torch.cuda.current_stream()
        main.wait_stream(side)
        x.record_stream(main)
        y.record_stream(main)
        ahead.append(fetch())
        c = p3(p2(p1(x)))
        map_ = head(F.relu(from3(c) + F.interpolate(from4(p4(c)), scale_factor=2)))
        at = (y[:, 1:3] * 15).long()
        near = map_[y[:, 0].long(), :, at[:, 0], at[:, 1]]
        loss = F.smooth_l1_loss(near[:, :4], y[:, 2:6]) + F.softplus(map_[:, 4]).mean() - near[:, 4].mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scores = map_.detach().sigmoid()
        away.wait_stream(main)
        with torch.cuda.stream(away):
            scores.to("cpu", non_blocking=True)
        scores.record_stream(away)
        del x, y, c, map_, near, at, scores
        yield loss


def stories_steps(torch):
    """Inference with growing sequences: many texts are continued at once in one batch; keys and values are kept in one tensor a layer that
    grows by a block of words when it is full, and texts that end make room for others."""
    nn, F = torch.nn, torch.nn.functional
    layers, heads, width, vocab, block = 10, 10, 640, 16000, 48
    torch.manual_seed(0)
    words = nn.Embedding(vocab, width).to(DEVICE).half()
    parts = [[nn.Linear(a, b).to(DEVICE).half() for a, b in ((width, 3 * width), (width, width), (width, 3 * width), (3 * width, width))] for _ in range(layers)]
    dice = random.Random(61)
    with torch.no_grad():
        while True:
            rows, length = dice.randrange(8, 33), dice.randrange(32, 200)
            kept = [None] * layers
            x = words(torch.randint(0, vocab, (rows, length), device=DEVICE))
            for _ in range(dice.randrange(6, 16)):  # a step of ours: as many words as fill a block
                for _ in range(block // 12):
                    for i, (qkv, out, up, down) in enumerate(parts):
                        q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in qkv(F.layer_norm(x, (width,))).chunk(3, 2))
                        if kept[i] is not None:
                            k, v = torch.cat((kept[i][0], k), 2), torch.cat((kept[i][1], v), 2)
                        kept[i] = (k, v)
                        x = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
                        x = x + down(F.gelu(up(F.layer_norm(x, (width,)))))
                    x = words(F.linear(x[:, -1:], words.weight).argmax(-1)).expand(-1, 12, -1)
                yield x.sum()


def duel_steps(torch):
    """Two models by turns: a recurrent network over long sounds and a convolutional one over their spectra, four batches each, of three
    lengths; after each turn both are tested without gradients."""
    nn, F = torch.nn, torch.nn.functional
    torch.manual_seed(0)
    ears = nn.GRU(64, 320, 2, batch_first=True).to(DEVICE)
    name = nn.Linear(320, 40).to(DEVICE)
    sizes = (1, 24, 48, 96, 160)
    eyes = nn.Sequential(*(nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.BatchNorm2d(b), nn.ReLU(), nn.AvgPool2d(2)) for a, b in zip(sizes, sizes[1:])),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 40)).to(DEVICE)
    o1, o2 = torch.optim.Adam([*ears.parameters(), *name.parameters()], 1e-3), torch.optim.Adam(eyes.parameters(), 1e-3)
    dice = random.Random(67)

    def heard(rows, length):
        return name(ears(torch.randn(rows, length, 64, device=DEVICE))[0].mean(1))

    def seen(rows, length):
        return eyes(torch.randn(rows, 1, 64, length, device=DEVICE))

    while True:
        for model, optimizer, rows in ((heard, o1, 96), (seen, o2, 160)):
            for _ in range(4):
                loss = F.cross_entropy(model(rows, dice.choice((128, 192, 256))), torch.randint(0, 40, (rows,), device=DEVICE))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                yield loss.detach()
        ears.eval(), eyes.eval()
        with torch.no_grad():
            loss = (heard(256, 256) - seen(256, 256)).square().mean()
        ears.train(), eyes.train()
        yield loss


def molecules_steps(torch):
    """One stream: graphs of atoms, in batches with as many graphs but never as many atoms; messages along the bonds are gathered and summed."""
    nn, F = torch.nn, torch.nn.functional
    width, rounds = 192, 5
    torch.manual_seed(0)
    atoms, bonds = nn.Embedding(60, width).to(DEVICE), nn.Embedding(8, width).to(DEVICE)
    says = [nn.Sequential(nn.Linear(3 * width, width), nn.SiLU(), nn.Linear(width, width)).to(DEVICE) for _ in range(rounds)]
    hears = [nn.GRUCell(width, width).to(DEVICE) for _ in range(rounds)]
    last = nn.Linear(width, 12).to(DEVICE)
    parameters = [p for m in (atoms, bonds, *says, *hears, last) for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-3)
    dice = random.Random(71)
    while True:
        count = sum(dice.randrange(9, 60) for _ in range(400))
        ends = 2 * count + dice.randrange(count // 4)
        h, a, b = atoms(torch.randint(0, 60, (count,), device=DEVICE)), torch.randint(0, count, (ends,), device=DEVICE), torch.randint(0, count, (ends,), device=DEVICE)
        kinds = bonds(torch.randint(0, 8, (ends,), device=DEVICE))
        for say, hear in zip(says, hears):
            told = torch.zeros_like(h).index_add_(0, b, say(torch.cat((h[a], h[b], kinds), 1)))
            h = hear(told, h)
        of = torch.arange(count, device=DEVICE) * 400 // count
        loss = F.mse_loss(last(torch.zeros(400, width, device=DEVICE).index_add_(0, of, h)), torch.randn(400, 12, device=DEVICE))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


# Part: the loop, steps before the first timed one, steps a turn, turns.
UNSEEN = {"captions": (captions_steps, 24, 18, 8), "tiles": (tiles_steps, 30, 20, 8), "stories": (stories_steps, 30, 15, 8),
          "duel": (duel_steps, 36, 27, 8), "molecules": (molecules_steps, 30, 20, 8)}
