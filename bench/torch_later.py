"""Training and inference loops written when packing had its end and the slack was as it is, and before that code had run on a card: nothing was changed for them. As in
torch_models.py each is a generator, one step each; bench/torch_streams.py measures them.

They are bound by the card, not by Python or the workers, and hold some GiB, so that a hundredth can be seen.
"""
import random

DEVICE = "cuda"


def diffuse_steps(torch):
    """torch.compile: a diffusion transformer (DiT, width 1152) on latent pictures of 32 x 32, its blocks compiled one by one as the libraries for such models do it; bfloat16 by autocast,
    fused AdamW, a slow copy of the weights."""
    nn, F = torch.nn, torch.nn.functional
    layers, heads, width, batch = 12, 16, 1152, 40

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.shape, self.qkv, self.out = nn.Linear(width, 6 * width), nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, c):
            s1, t1, g1, s2, t2, g2 = self.shape(F.silu(c))[:, None].chunk(6, 2)
            h = F.layer_norm(x, (width,)) * (1 + s1) + t1
            q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in self.qkv(h).chunk(3, 2))
            x = x + g1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
            h = F.layer_norm(x, (width,)) * (1 + s2) + t2
            return x + g2 * self.down(F.gelu(self.up(h), approximate="tanh"))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch, self.classes = nn.Conv2d(4, width, 2, 2), nn.Embedding(1001, width)
            self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
            self.places, self.blocks, self.last = nn.Parameter(torch.zeros(1, 256, width)), nn.ModuleList(Block() for _ in range(layers)), nn.Linear(width, 16)

        def forward(self, x, t, y):
            angles = t[:, None] * torch.exp(-9.2 * torch.arange(128, device=x.device) / 128)
            c = self.time(torch.cat((angles.cos(), angles.sin()), 1)) + self.classes(y)
            h = self.patch(x).flatten(2).transpose(1, 2) + self.places
            for block in self.blocks:
                h = block(h, c)
            h = self.last(F.layer_norm(h, (width,))).view(-1, 16, 16, 2, 2, 4)
            return h.permute(0, 5, 1, 3, 2, 4).reshape(x.shape)

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Net().to(DEVICE)
    slow = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0, fused=True)
    for block in model.blocks:
        block.compile()
    while True:
        x, y = torch.randn(batch, 4, 32, 32, device=DEVICE), torch.randint(0, 1001, (batch,), device=DEVICE)
        t, noise = torch.rand(batch, device=DEVICE), torch.randn_like(x)
        part = t[:, None, None, None]
        with torch.autocast(DEVICE, torch.bfloat16):
            made = model((1 - part) * x + part * noise, 1000 * t, y)
        loss = F.mse_loss(made.float(), noise - x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch._foreach_lerp_(slow, [p.detach() for p in model.parameters()], 1e-4)
        yield loss.detach()


def streets_steps(torch):
    """Side streams and DataLoader workers: torchvision's DeepLabV3 on streets of 320 x 320, cut by the workers; pictures come and are normalised on one side stream, what is to be seen
    on another, two batches ahead; how often which class was taken for which leaves on a third."""
    F = torch.nn.functional
    from torchvision.models.segmentation import deeplabv3_resnet50

    class Streets(torch.utils.data.Dataset):
        pictures = torch.randint(0, 255, (8, 3, 400, 400), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
        classes = torch.randint(0, 19, (8, 400, 400), dtype=torch.uint8, generator=torch.Generator().manual_seed(6))

        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            dice = random.Random(i)
            top, left = dice.randrange(80), dice.randrange(80)
            return self.pictures[i % 8, :, top:top + 320, left:left + 320], self.classes[i % 8, top:top + 320, left:left + 320]

    torch.manual_seed(0)
    model = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=19, aux_loss=True).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    loader = iter(torch.utils.data.DataLoader(Streets(), 32, num_workers=4, pin_memory=True, persistent_workers=True))
    pictures, classes, results = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
    mean, spread = (torch.tensor(v, device=DEVICE).view(1, 3, 1, 1) * 255 for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(pictures):
            x = x.to(DEVICE, non_blocking=True).to(memory_format=torch.channels_last).float().sub_(mean).div_(spread)
        with torch.cuda.stream(classes):
            y = y.to(DEVICE, non_blocking=True).long()
        return x, y

    pictures.wait_stream(torch.cuda.current_stream())
    ahead = [fetch(), fetch()]
    while True:
        main = torch.cuda.current_stream()
        x, y = ahead.pop(0)
        for stream, tensor in ((pictures, x), (classes, y)):
            main.wait_stream(stream)
            tensor.record_stream(main)
        ahead.append(fetch())
        with torch.autocast(DEVICE, torch.bfloat16):
            made = model(x)
            loss = F.cross_entropy(made["out"].float(), y) + 0.4 * F.cross_entropy(made["aux"].float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen = made["out"].detach()
        results.wait_stream(main)
        with torch.cuda.stream(results):
            torch.bincount((19 * y + seen.argmax(1)).flatten(), minlength=361).to("cpu", non_blocking=True)
        seen.record_stream(results)
        y.record_stream(results)
        del x, y, made, seen, tensor
        yield loss.detach()


class Decoder:
    """As models of three thousand million weights are today: 24 layers of width 3072, 24 heads that share four keys, gated; bfloat16. Caches by torch.cat."""
    layers, heads, groups, part, inner, vocab = 24, 24, 4, 128, 8192, 64000

    def __init__(self, torch):
        self.torch, width = torch, self.heads * self.part
        self.width = width

        def weight(a, b):
            return torch.empty(a, b, device=DEVICE, dtype=torch.bfloat16).normal_(0, 0.02)

        self.words = weight(self.vocab, width)
        self.parts = [(weight((self.heads + 2 * self.groups) * self.part, width), weight(width, width), weight(2 * self.inner, width), weight(width, self.inner)) for _ in range(self.layers)]
        angles = torch.outer(torch.arange(16384, device=DEVICE), 5e5 ** (-torch.arange(0, self.part, 2, device=DEVICE) / self.part)).repeat(1, 2)
        self.cos, self.sin = angles.cos()[:, None].to(torch.bfloat16), angles.sin()[:, None].to(torch.bfloat16)

    def shared(self, t):
        """Every key for the heads that share it."""
        return t[:, :, None].expand(-1, -1, self.heads // self.groups, -1, -1).reshape(t.shape[0], self.heads, -1, self.part)

    def read(self, text, kept):
        """Scores of the next word; what was read is kept."""
        torch, F = self.torch, self.torch.nn.functional
        before = kept[0][0].shape[2] if kept[0] else 0
        length, turned = text.shape[1], self.heads + self.groups
        cos, sin = self.cos[before:before + length], self.sin[before:before + length]
        mask = None
        if before and length > 1:  # more of a text of which a part was read
            mask = torch.ones(length, before + length, dtype=torch.bool, device=DEVICE).tril(before)
        x = F.embedding(text, self.words)
        for i, (qkv, out, up, down) in enumerate(self.parts):
            h = F.linear(F.rms_norm(x, (self.width,)), qkv).view(*text.shape, -1, self.part)
            qk, v = h[:, :, :turned], h[:, :, turned:].transpose(1, 2)
            a, b = qk.chunk(2, 3)
            qk = (qk * cos + torch.cat((-b, a), 3) * sin).transpose(1, 2)
            q, k = qk[:, :self.heads], qk[:, self.heads:]
            if kept[i]:
                k, v = torch.cat((kept[i][0], k), 2), torch.cat((kept[i][1], v), 2)
            else:
                k, v = k.contiguous(), v.contiguous()
            kept[i] = (k, v)
            h = F.scaled_dot_product_attention(q, self.shared(k), self.shared(v), attn_mask=mask, is_causal=not before)
            x = x + F.linear(h.transpose(1, 2).reshape(x.shape), out)
            a, b = F.linear(F.rms_norm(x, (self.width,)), up).chunk(2, 2)
            x = x + F.linear(F.silu(a) * b, down)
        return F.linear(F.rms_norm(x[:, -1], (self.width,)), self.words).float()


def chat_steps(torch):
    """Inference with growing sequences: forty-eight questions of 640 to 1,024 words are read at once and answered with 128 words each, drawn one by one. A step is the reading, or sixteen words."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    model, dice = Decoder(torch), random.Random(113)
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        while True:
            kept = [None] * model.layers
            scores = model.read(torch.randint(0, model.vocab, (48, dice.randrange(640, 1025)), device=DEVICE), kept)
            yield scores.amax()
            for _ in range(8):
                for _ in range(16):
                    scores = model.read((scores / 0.7).softmax(-1).multinomial(1), kept)
                yield scores.amax()


def papers_steps(torch):
    """Inference with growing sequences: six papers of one length, 6,000 to 9,000 words, are read together in pieces of 1,024 with all before them kept, then summed up in 32 words. A step is
    six papers."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    model, dice = Decoder(torch), random.Random(127)
    with torch.no_grad(), sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]):
        while True:
            kept, text = [None] * model.layers, torch.randint(0, model.vocab, (6, dice.randrange(6000, 9001)), device=DEVICE)
            for piece in text.split(1024, 1):
                scores = model.read(piece, kept)
            for _ in range(32):
                scores = model.read(scores.argmax(-1, keepdim=True), kept)
            yield scores.amax()


def mutual_steps(torch):
    """Two models by turns: torchvision's RegNetY-3.2GF and Swin-T learn from each other. Each step trains one of them on the labels and on what the other says of the pictures."""
    F = torch.nn.functional
    from torchvision.models import regnet_y_3_2gf, swin_t

    torch.manual_seed(0)
    models = [m(num_classes=365).to(DEVICE, memory_format=torch.channels_last) for m in (regnet_y_3_2gf, swin_t)]
    optimizers = [torch.optim.SGD(models[0].parameters(), 0.2, momentum=0.9), torch.optim.AdamW(models[1].parameters(), 5e-4, weight_decay=0.05)]
    for i in range(1 << 30):
        model, other, optimizer = models[i % 2], models[1 - i % 2], optimizers[i % 2]
        x = torch.randn(112, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last)
        y = torch.randint(0, 365, (112,), device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            with torch.no_grad():
                said = other(x).float().log_softmax(1)
            scores = model(x).float()
        loss = F.cross_entropy(scores, y) + F.kl_div(scores.log_softmax(1), said, reduction="batchmean", log_target=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def policy_steps(torch):
    """Two models by turns: a language model of 16 layers is trained by reward (the clipped objective of PPO, beside a fixed older copy's words), then one of 8 layers learns what the
    reward will be; answers of two lengths."""
    nn, F = torch.nn, torch.nn.functional
    width, heads, vocab, batch = 1024, 16, 32000, 8

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out, self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, 2))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    def net(layers, out):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(1024, width)
                self.blocks, self.last = nn.Sequential(*(Block() for _ in range(layers)), nn.LayerNorm(width)), nn.Linear(width, out, bias=False)

            def forward(self, text):
                return self.last(self.blocks(self.words(text) + self.places.weight[:text.shape[1]]))
        return Net().to(DEVICE)

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    policy, older, value = net(16, vocab), net(16, vocab).to(torch.bfloat16).requires_grad_(False), net(8, 1)
    o1, o2 = torch.optim.AdamW(policy.parameters(), 1e-6), torch.optim.AdamW(value.parameters(), 1e-5)
    dice = random.Random(131)

    def chance(model, text):
        return -F.cross_entropy(model(text[:, :-1]).float().flatten(0, 1), text[:, 1:].flatten(), reduction="none").view(batch, -1)

    while True:
        text = torch.randint(0, vocab, (batch, dice.choice((768, 1024))), device=DEVICE)
        gain = torch.randn(batch, text.shape[1] - 1, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            with torch.no_grad():
                old = chance(older, text)
            part = (chance(policy, text) - old).exp()
            loss = -torch.minimum(part * gain, part.clamp(0.8, 1.2) * gain).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        o1.step()
        o1.zero_grad(set_to_none=True)
        del old, part
        yield loss.detach()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.mse_loss(value(text)[:, :-1, 0].float(), gain)
        loss.backward()
        nn.utils.clip_grad_norm_(value.parameters(), 1.0)
        o2.step()
        o2.zero_grad(set_to_none=True)
        yield loss.detach()


# Part: the loop, steps before the first timed one, steps a turn, turns.
LATER = {"diffuse": (diffuse_steps, 16, 12, 60), "streets": (streets_steps, 16, 8, 60), "chat": (chat_steps, 18, 9, 60), "mutual": (mutual_steps, 16, 8, 60),
         "policy": (policy_steps, 16, 8, 60), "papers": (papers_steps, 4, 2, 60)}
