"""Training and inference loops written when spans lay beside seats and steps that go on moving pages for each other were one: nothing of that was changed for them. As in torch_models.py each is a
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


# Part: the loop, steps before the first timed one, steps a turn, turns.
SINCE = {"mosses": (mosses_steps, 16, 8, 60), "canals": (canals_steps, 24, 12, 60), "myths": (myths_steps, 20, 10, 60), "vineyards": (vineyards_steps, 20, 10, 60)}
