"""Training and inference loops written when spans lay beside seats and steps that go on moving pages for each other were one: nothing of that was changed for them. Four more (ledgers, cranes, psalms, mills)
when all eleven changes of section P in docs/bench/gpu.md were finished. As in torch_models.py each is a
generator, one step each; bench/torch_streams.py measures them.
"""
import random

DEVICE = "cuda"


def mosses_steps(torch):
    """torch.compile: torchvision's ConvNeXt-Tiny learns 300 mosses from 120 pictures at a time, with softened names, and a mean of its parameters goes along."""
    F = torch.nn.functional
    from torchvision.models import convnext_tiny

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = convnext_tiny(num_classes=300).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-4, weight_decay=0.05, fused=True)
    parameters = list(model.parameters())
    means = [p.detach().clone() for p in parameters]

    @torch.compile
    def loss_of(x, y):
        with torch.autocast(DEVICE, torch.bfloat16):
            return F.cross_entropy(model(x).float(), y, label_smoothing=0.1)

    while True:
        x = torch.randn(120, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last)
        loss = loss_of(x, torch.randint(0, 300, (120,), device=DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(means, parameters, 0.001)
        yield loss.detach()


def canals_steps(torch):
    """Side streams and DataLoader workers: six seconds of sound are cut by the workers and come on one side stream, what is heard in them on another, three batches ahead; the first also makes spectrograms
    of them. torchvision's ResNet34 learns them, and its guesses leave on a third."""
    F = torch.nn.functional
    from torchvision.models import resnet34

    class Canals(torch.utils.data.Dataset):
        stored = torch.randn(12, 160000, generator=torch.Generator().manual_seed(37))

        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            begin = random.Random(i).randrange(160000 - 96000)
            return self.stored[i % 12, begin:begin + 96000], i % 50

    torch.manual_seed(0)
    model = resnet34(num_classes=50).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    window = torch.hann_window(512, device=DEVICE)
    loader = iter(torch.utils.data.DataLoader(Canals(), 96, num_workers=4, pin_memory=True, persistent_workers=True))
    sounds, names, results = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(sounds):
            heard = torch.stft(x.to(DEVICE, non_blocking=True), 512, 160, window=window, return_complex=True)
            x = heard.abs().log1p()[:, None].expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        with torch.cuda.stream(names):
            y = y.to(DEVICE, non_blocking=True)
        return x, y

    for stream in (sounds, names):
        stream.wait_stream(torch.cuda.current_stream())
    ahead = [fetch(), fetch(), fetch()]
    while True:
        main = torch.cuda.current_stream()
        x, y = ahead.pop(0)
        for stream, tensor in ((sounds, x), (names, y)):
            main.wait_stream(stream)
            tensor.record_stream(main)
        ahead.append(fetch())
        with torch.autocast(DEVICE, torch.bfloat16):
            guesses = model(x).float()
        loss = F.cross_entropy(guesses, y)
        results.wait_stream(main)
        with torch.cuda.stream(results):
            guesses.detach().argmax(1).to("cpu", non_blocking=True)
            guesses.record_stream(results)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del x, y, tensor, guesses
        yield loss.detach()


def myths_steps(torch):
    """Inference with growing sequences: the first 300 to 2,200 words of twenty-six myths are read at once by a decoder of 20 layers with five keys for its 20 heads, and gone on with for 48 words. A step
    is the reading, or twelve words."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_later import Decoder

    class Singer(Decoder):
        layers, heads, groups, part, inner, vocab = 20, 20, 5, 128, 7168, 40000

    torch.manual_seed(0)
    model, dice = Singer(torch), random.Random(607)
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        while True:
            kept = [None] * model.layers
            scores = model.read(torch.randint(0, model.vocab, (26, dice.randrange(300, 2201)), device=DEVICE), kept)
            yield scores.amax()
            for _ in range(4):
                for _ in range(12):
                    scores = model.read(scores.argmax(-1, keepdim=True), kept)
                yield scores.amax()


def vineyards_steps(torch):
    """Two models by turns: torchvision's Swin-S on pictures of 224 points, then its DenseNet121 on those of 256, each with its own optimizer."""
    F = torch.nn.functional
    from torchvision.models import densenet121, swin_s

    torch.manual_seed(0)
    models = [m(num_classes=75).to(DEVICE, memory_format=torch.channels_last) for m in (swin_s, densenet121)]
    optimizers = [torch.optim.AdamW(models[0].parameters(), 2e-4, weight_decay=0.05), torch.optim.SGD(models[1].parameters(), 0.1, momentum=0.9)]
    while True:
        for model, optimizer, batch, points in zip(models, optimizers, (64, 72), (224, 256)):
            x = torch.randn(batch, 3, points, points, device=DEVICE).to(memory_format=torch.channels_last)
            y = torch.randint(0, 75, (batch,), device=DEVICE)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield loss.detach()


def ledgers_steps(torch):
    """torch.compile: a decoder of 10 layers of width 1024 with gated middles learns ledgers of 1,024 entries, twelve at a time; what it learnt of two such halves makes a step."""
    nn, F = torch.nn, torch.nn.functional
    heads, width, words, rows, length = 16, 1024, 24000, 12, 1024

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 5632, bias=False), nn.Linear(2816, width, bias=False)

        def forward(self, x):
            q, k, v = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, 2))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            a, b = self.up(self.second(x)).chunk(2, 2)
            return x + self.down(F.silu(a) * b)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places, self.last = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width)), nn.RMSNorm(width)
            self.layers, self.head = nn.ModuleList(Layer() for _ in range(10)), nn.Linear(width, words, bias=False)

        def forward(self, t):
            x = self.words(t) + self.places
            for layer in self.layers:
                x = layer(x)
            return self.head(self.last(x))

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Net().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, weight_decay=0.1, fused=True)

    @torch.compile
    def loss_of(t):
        with torch.autocast(DEVICE, torch.bfloat16):
            return F.cross_entropy(model(t[:, :-1]).float().flatten(0, 1), t[:, 1:].flatten()) / 2

    while True:
        for _ in range(2):
            loss = loss_of(torch.randint(0, words, (rows, length + 1), device=DEVICE))
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def cranes_steps(torch):
    """Side streams and DataLoader workers: pictures are cut by the workers, come, are scaled and some of them mixed with others on one side stream, two batches ahead, what is on them on another;
    torchvision's RegNetY-3.2GF learns them, and how surely leaves on a third."""
    F = torch.nn.functional
    from torchvision.models import regnet_y_3_2gf

    class Cranes(torch.utils.data.Dataset):
        stored = torch.randint(0, 255, (16, 3, 280, 280), dtype=torch.uint8, generator=torch.Generator().manual_seed(41))

        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            y, x = divmod(random.Random(i).randrange(56 * 56), 56)
            return self.stored[i % 16, :, y:y + 224, x:x + 224], i % 15

    torch.manual_seed(0)
    model = regnet_y_3_2gf(num_classes=15).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-5)
    loader = iter(torch.utils.data.DataLoader(Cranes(), 104, num_workers=4, pin_memory=True, persistent_workers=True))
    pictures, names, results = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(pictures):
            x = x.to(DEVICE, non_blocking=True).float().div_(255).sub_(0.5)
            share = torch.rand(len(x), 1, 1, 1, device=DEVICE).clamp_(0.5)
            x = torch.lerp(x.flip(0), x, share).to(memory_format=torch.channels_last)
        with torch.cuda.stream(names):
            y = F.one_hot(y.to(DEVICE, non_blocking=True), 15).float()
        return x, y

    for stream in (pictures, names):
        stream.wait_stream(torch.cuda.current_stream())
    ahead = [fetch(), fetch()]
    while True:
        main = torch.cuda.current_stream()
        x, y = ahead.pop(0)
        for stream, tensor in ((pictures, x), (names, y)):
            main.wait_stream(stream)
            tensor.record_stream(main)
        ahead.append(fetch())
        with torch.autocast(DEVICE, torch.bfloat16):
            guesses = model(x).float()
        loss = F.cross_entropy(guesses, y)
        results.wait_stream(main)
        with torch.cuda.stream(results):
            guesses.detach().softmax(1).amax(1).to("cpu", non_blocking=True)
            guesses.record_stream(results)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del x, y, tensor, guesses
        yield loss.detach()


def psalms_steps(torch):
    """Inference with growing sequences: the first 200 to 1,600 words of 12 to 32 psalms are read at once by a decoder of 28 layers with four keys for its 16 heads, and gone on with for 60 words. A step
    is the reading, or fifteen words."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_later import Decoder

    class Chanter(Decoder):
        layers, heads, groups, part, inner, vocab = 28, 16, 4, 128, 5632, 50000

    torch.manual_seed(0)
    model, dice = Chanter(torch), random.Random(701)
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        while True:
            kept = [None] * model.layers
            scores = model.read(torch.randint(0, model.vocab, (dice.randrange(12, 33), dice.randrange(200, 1601)), device=DEVICE), kept)
            yield scores.amax()
            for _ in range(4):
                for _ in range(15):
                    scores = model.read(scores.argmax(-1, keepdim=True), kept)
                yield scores.amax()


def mills_steps(torch):
    """Two models by turns: torchvision's EfficientNetV2-S on 80 pictures of 224 points, then an encoder of 12 layers over 40 texts of 512 words whose every seventh word it has to find; each has its
    own optimizer."""
    nn, F = torch.nn, torch.nn.functional
    from torchvision.models import efficientnet_v2_s

    torch.manual_seed(0)
    pictures = efficientnet_v2_s(num_classes=120).to(DEVICE, memory_format=torch.channels_last)
    layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, F.gelu, batch_first=True, norm_first=True)
    texts = nn.Sequential(nn.Embedding(20001, 768), nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), nn.LayerNorm(768), nn.Linear(768, 20000)).to(DEVICE)
    learners = [torch.optim.SGD(pictures.parameters(), 0.1, momentum=0.9, weight_decay=4e-5), torch.optim.AdamW(texts.parameters(), 2e-4)]
    while True:
        x = torch.randn(80, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last)
        y = torch.randint(0, 120, (80,), device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(pictures(x).float(), y)
        loss.backward()
        learners[0].step()
        learners[0].zero_grad(set_to_none=True)
        yield loss.detach()
        words = torch.randint(0, 20000, (40, 512), device=DEVICE)
        shown = words.clone()
        shown[:, ::7] = 20000
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(texts(shown)[:, ::7].float().flatten(0, 1), words[:, ::7].flatten())
        loss.backward()
        learners[1].step()
        learners[1].zero_grad(set_to_none=True)
        yield loss.detach()


# Part: the loop, steps before the first timed one, steps a turn, turns.
SINCE = {"mosses": (mosses_steps, 16, 8, 60), "canals": (canals_steps, 24, 12, 60), "myths": (myths_steps, 20, 10, 60), "vineyards": (vineyards_steps, 20, 10, 60),
         "ledgers": (ledgers_steps, 16, 8, 60), "cranes": (cranes_steps, 24, 12, 60), "psalms": (psalms_steps, 20, 10, 60), "mills": (mills_steps, 20, 10, 60)}
