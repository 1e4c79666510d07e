"""Plain PyTorch programs whose memory is predicted from a recorded step and measured on a card. A case is MODEL:BATCH:PRECISION with precision
tf32 or bf16 (autocast). `make(torch, case, device)` is what memfit.torch_trace takes: it builds everything and returns one step.

Sizes are arguments, so that further cases can be drawn: `draw(seed)`.
"""
import random


def bottleneck(nn, torch, ins, width, stride):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(ins, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
                                      nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
                                      nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
            self.short = nn.Sequential(nn.Conv2d(ins, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)) if stride > 1 or ins != 4 * width else nn.Identity()

        def forward(self, x):
            return torch.relu(self.body(x) + self.short(x))
    return Block()


def resnet(torch, side=224, width=64, blocks=(3, 4, 6, 3)):
    nn = torch.nn
    layers, ins = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)], width
    for i, count in enumerate(blocks):
        for k in range(count):
            layers.append(bottleneck(nn, torch, ins, width << i, 2 if i and not k else 1))
            ins = 4 * (width << i)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 1000)), (3, side, side), 1000


def vgg(torch, side=224, plan=(1, 1, 2, 2, 2)):
    nn, layers, ins = torch.nn, [], 3
    for i, count in enumerate(plan):
        for _ in range(count):
            layers += [nn.Conv2d(ins, min(64 << i, 512), 3, padding=1), nn.ReLU(True)]
            ins = min(64 << i, 512)
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(True), nn.Dropout(), nn.Linear(4096, 1000)), (3, side, side), 1000


def mobile(torch, side=224, width=32, blocks=10):
    nn, layers, ins = torch.nn, [torch.nn.Conv2d(3, width, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(width), torch.nn.ReLU6(True)], width
    for i in range(blocks):
        out = width * (1 + i // 3)
        layers += [nn.Conv2d(ins, 6 * ins, 1, bias=False), nn.BatchNorm2d(6 * ins), nn.ReLU6(True),
                   nn.Conv2d(6 * ins, 6 * ins, 3, 2 if i % 3 == 1 else 1, 1, groups=6 * ins, bias=False), nn.BatchNorm2d(6 * ins), nn.ReLU6(True),
                   nn.Conv2d(6 * ins, out, 1, bias=False), nn.BatchNorm2d(out)]
        ins = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 1000)), (3, side, side), 1000


def densenet(torch, side=160, growth=24, layers=8, stages=3):
    nn = torch.nn

    class Dense(nn.Module):
        def __init__(self, ins):
            super().__init__()
            self.parts = nn.ModuleList(nn.Sequential(nn.BatchNorm2d(ins + growth * i), nn.ReLU(True), nn.Conv2d(ins + growth * i, growth, 3, padding=1, bias=False))
                                       for i in range(layers))

        def forward(self, x):
            for part in self.parts:
                x = torch.cat((x, part(x)), 1)
            return x
    body, ins = [nn.Conv2d(3, 48, 3, 2, 1)], 48
    for _ in range(stages):
        body += [Dense(ins), nn.Conv2d(ins + growth * layers, 96, 1), nn.AvgPool2d(2)]
        ins = 96
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 100)), (3, side, side), 100


def unet(torch, side=192, width=32, depth=4):
    nn = torch.nn

    def twice(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(True), nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(True))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList(twice(3 if not i else width << (i - 1), width << i) for i in range(depth))
            self.middle = twice(width << (depth - 1), width << depth)
            self.up = nn.ModuleList(nn.ConvTranspose2d(width << (i + 1), width << i, 2, 2) for i in reversed(range(depth)))
            self.join = nn.ModuleList(twice(width << (i + 1), width << i) for i in reversed(range(depth)))
            self.out = nn.Conv2d(width, 5, 1)

        def forward(self, x):
            kept = []
            for block in self.down:
                x = block(x)
                kept.append(x)
                x = nn.functional.max_pool2d(x, 2)
            x = self.middle(x)
            for up, join in zip(self.up, self.join):
                x = join(torch.cat((kept.pop(), up(x)), 1))
            return self.out(x)
    return Net(), (3, side, side), "pixels"


def diffusion(torch, side=64, width=96):
    """GroupNorm, SiLU and attention over positions."""
    nn, F = torch.nn, torch.nn.functional

    class Attend(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.norm, self.qkv, self.out = nn.GroupNorm(8, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

        def forward(self, x):
            b, c, h, w = x.shape
            q, k, v = self.qkv(self.norm(x)).view(b, 3, 4, c // 4, h * w).transpose(3, 4).unbind(1)
            return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, c, h, w))

    def block(a, b):
        return nn.Sequential(nn.GroupNorm(8 if a > 3 else 1, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1))
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), block(width, width), nn.AvgPool2d(2), block(width, 2 * width), Attend(2 * width), block(2 * width, 2 * width),
                         Attend(2 * width), nn.Upsample(scale_factor=2), block(2 * width, width), block(width, 3)), (3, side, side), "picture"


def gpt(torch, layers=6, heads=8, width=512, length=512, vocabulary=16000, dropout=0.0):
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(dropout)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (s.view(b, t, heads, c // heads).transpose(1, 2) for s in self.qkv(self.n1(x)).split(width, 2))
            x = x + self.drop(self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)))
            return x + self.drop(self.down(F.gelu(self.up(self.n2(x)))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
            self.blocks, self.norm, self.out = nn.Sequential(*(Block() for _ in range(layers))), nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, t):
            return self.out(self.norm(self.blocks(self.tokens(t) + self.places)))
    return Model(), (length, vocabulary), "next"


def encoder(torch, layers=4, heads=8, width=384, length=256, vocabulary=12000):
    """PyTorch's own encoder layers, with dropout, pooled."""
    nn = torch.nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, batch_first=True, activation="gelu"), layers)
            self.out = nn.Linear(width, 3)

        def forward(self, t):
            return self.out(self.body(self.tokens(t)).mean(1))
    return Model(), (length, vocabulary), 3


def vit(torch, side=224, patch=16, layers=6, heads=6, width=384):
    nn = torch.nn
    count = (side // patch) ** 2

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut, self.places = nn.Conv2d(3, width, patch, patch), nn.Parameter(torch.zeros(count, width))
            self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True, activation="gelu"), layers)
            self.out = nn.Linear(width, 1000)

        def forward(self, x):
            return self.out(self.body(self.cut(x).flatten(2).transpose(1, 2) + self.places).mean(1))
    return Model(), (3, side, side), 1000


def mixer(torch, side=224, patch=16, layers=6, width=512):
    nn = torch.nn
    count = (side // patch) ** 2

    def mlp(a, b):
        return nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Linear(b, a))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2, self.across, self.along = nn.LayerNorm(width), nn.LayerNorm(width), mlp(count, 256), mlp(width, 4 * width)

        def forward(self, x):
            x = x + self.across(self.n1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.along(self.n2(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut, self.body, self.out = nn.Conv2d(3, width, patch, patch), nn.Sequential(*(Block() for _ in range(layers))), nn.Linear(width, 1000)

        def forward(self, x):
            return self.out(self.body(self.cut(x).flatten(2).transpose(1, 2)).mean(1))
    return Model(), (3, side, side), 1000


def rnn(torch, kind="LSTM", width=512, layers=2, length=128, vocabulary=10000):
    nn = torch.nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.body, self.out = nn.Embedding(vocabulary, width), getattr(nn, kind)(width, width, layers, batch_first=True), nn.Linear(width, vocabulary)

        def forward(self, t):
            return self.out(self.body(self.tokens(t))[0])
    return Model(), (length, vocabulary), "next"


def mlp(torch, width=4096, layers=4, ins=1024):
    nn = torch.nn
    body = [nn.Linear(ins, width), nn.GELU()]
    for _ in range(layers):
        body += [nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*body, nn.Linear(width, 100)), (ins,), 100


def convnext(torch, side=224, width=64, blocks=(2, 2, 4, 2)):
    nn = torch.nn

    class Last(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

        def forward(self, x):
            return self.down(nn.functional.gelu(self.up(self.norm(x.permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)

    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.deep, self.last = nn.Conv2d(c, c, 7, padding=3, groups=c), Last(c)

        def forward(self, x):
            return x + self.last(self.deep(x))
    body, ins = [], 3
    for i, count in enumerate(blocks):
        body += [nn.Conv2d(ins, width << i, 4 if not i else 2, 4 if not i else 2)] + [Block(width << i) for _ in range(count)]
        ins = width << i
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 1000)), (3, side, side), 1000


# name: (builder, its arguments, two batches). The first half was there when the model was made.
CASES = {
    "resnet50": (resnet, {}, (32, 96)),
    "vgg11": (vgg, {}, (32, 96)),
    "mobile": (mobile, {}, (48, 128)),
    "unet": (unet, {}, (12, 32)),
    "gpt": (gpt, {}, (8, 24)),
    "encoder": (encoder, {}, (32, 96)),
    "vit": (vit, {}, (32, 96)),
    "lstm": (rnn, {}, (32, 96)),
}
CHOICES = {
    "resnet": (resnet, dict(side=(128, 160, 192, 256, 288), width=(32, 48, 64), blocks=((2, 2, 2, 2), (3, 4, 6, 3), (2, 3, 8, 2))), (16, 96)),
    "vgg": (vgg, dict(side=(96, 128, 160, 192), plan=((1, 1, 2, 2, 2), (2, 2, 3, 3, 3), (2, 2, 2, 2, 2))), (16, 96)),
    "mobile": (mobile, dict(side=(128, 160, 192, 256), width=(16, 24, 40), blocks=(7, 10, 13)), (16, 128)),
    "densenet": (densenet, dict(side=(96, 128, 192), growth=(12, 24, 32), layers=(6, 8, 12), stages=(2, 3)), (8, 64)),
    "unet": (unet, dict(side=(128, 160, 256), width=(16, 24, 48), depth=(3, 4)), (4, 32)),
    "diffusion": (diffusion, dict(side=(32, 48, 64), width=(64, 96, 128)), (8, 64)),
    "gpt": (gpt, dict(layers=(4, 8, 12), width=(384, 512, 768), length=(256, 512, 1024), vocabulary=(8000, 32000), dropout=(0.0, 0.1)), (2, 24)),
    "encoder": (encoder, dict(layers=(2, 6, 8), width=(256, 512), length=(128, 384), vocabulary=(5000, 30000)), (8, 96)),
    "vit": (vit, dict(side=(160, 224, 256), patch=(8, 16), layers=(4, 8, 12), width=(192, 384, 576)), (8, 64)),
    "mixer": (mixer, dict(side=(160, 224), patch=(16,), layers=(4, 8), width=(256, 512, 768)), (16, 128)),
    "rnn": (rnn, dict(kind=("LSTM", "GRU"), width=(256, 768), layers=(1, 3), length=(64, 200)), (16, 128)),
    "mlp": (mlp, dict(width=(1024, 2048, 8192), layers=(2, 6), ins=(784, 3072)), (64, 8192)),
    "convnext": (convnext, dict(side=(128, 192, 224), width=(48, 64, 96), blocks=((2, 2, 4, 2), (3, 3, 9, 3))), (8, 64)),
}


ALWAYS = ("vgg", "rnn", "unet")  # what earlier drawings were wrong about
ATTENTION = ("gpt", "encoder", "vit", "diffusion")


def draw(seed, count=8, strata=False):
    """More cases, by chance: {name: (builder, arguments, two batches)}. With `strata` a VGG, an LSTM, a U-Net and one with attention are always among
    them. Of more than there are kinds some are drawn twice, with other sizes."""
    chance, out = random.Random(seed), {}
    if strata:
        kinds = [*ALWAYS, chance.choice(ATTENTION)]
        kinds += chance.sample(sorted(set(CHOICES) - set(kinds)), count - len(kinds))
    else:
        kinds = chance.sample(sorted(CHOICES), min(count, len(CHOICES)))
        kinds += chance.sample(sorted(CHOICES), count - len(kinds))
    for kind in kinds:
        builder, sizes, (least, most) = CHOICES[kind]
        small = chance.randint(least, (least + most) // 2)
        if strata and kind == "rnn":
            sizes = dict(sizes, kind=("LSTM",))
        name = "drawn-" + kind
        out[name + "-2" if name in out else name] = (builder, {k: chance.choice(v) for k, v in sorted(sizes.items())}, (small, min(most, small * chance.choice((2, 3)))))
    return out


def make(torch, name, arguments, builder, batch, precision, device):
    """What memfit.torch_trace takes, for `device` ("cuda")."""
    nn, F = torch.nn, torch.nn.functional

    def build():
        model, shape, target = builder(torch, **arguments)
        model = model.to(device)
        optimizer = torch.optim.Adam(model.parameters(), 1e-4)
        tokens = len(shape) == 2
        x = torch.zeros(batch, shape[0], dtype=torch.long, device=device) if tokens else torch.randn(batch, *shape, device=device)
        if target == "next":
            y = torch.zeros(batch, shape[0], dtype=torch.long, device=device)
        elif target == "pixels":
            y = torch.zeros(batch, *shape[1:], dtype=torch.long, device=device)
        else:
            y = torch.randn(batch, *shape, device=device) if target == "picture" else torch.zeros(batch, dtype=torch.long, device=device)

        def step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                out = model(x)
                if target == "picture":
                    loss = F.mse_loss(out.float(), y)
                else:
                    loss = F.cross_entropy(out.flatten(0, 1) if target == "next" else out, y.flatten() if target == "next" else y)
            loss.backward()
            optimizer.step()
        return step
    return build
