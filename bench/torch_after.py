"""Training and inference loops written when time owed to the device was forgotten once it was past it, and before that code had run on a card with them: nothing was changed for them. Four more (herbs,
tickets, recipes, owls) in the same way when what is moved early was bounded, too, once more (clouds, reefs, diaries, bridges) when handles were a quarter of all they are made for, again (signs, herds, novels, harvest) when the end of a step no longer depended on its batch, and again (ferns, ports, sagas, orchards) when steps at rest moved nothing. As in torch_models.py each is a generator, one step each; bench/torch_streams.py measures them.
"""
import random

DEVICE = "cuda"


def prices_steps(torch):
    """torch.compile: an encoder of 12 layers over 512 hours of 32 prices each, trained to say the next hour's."""
    nn, F = torch.nn, torch.nn.functional
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    layer = nn.TransformerEncoderLayer(896, 14, 3584, 0.0, F.gelu, batch_first=True, norm_first=True)
    net = nn.Sequential(nn.Linear(32, 896), nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), nn.LayerNorm(896), nn.Linear(896, 32)).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)

    @torch.compile
    def loss_of(x, y):
        with torch.autocast(DEVICE, torch.bfloat16):
            return F.huber_loss(net(x).float(), y)

    while True:
        hours = torch.randn(64, 513, 32, device=DEVICE)
        loss = loss_of(hours[:, :-1].contiguous(), hours[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def plates_steps(torch):
    """Side streams and DataLoader workers: pictures are cut by the workers, come and are turned and scaled on one side stream, a batch ahead, their names on another; torchvision's ResNet101 learns
    them, and every loss leaves on a third."""
    F = torch.nn.functional
    from torchvision.models import resnet101

    class Plates(torch.utils.data.Dataset):
        stored = torch.randint(0, 255, (16, 3, 300, 300), dtype=torch.uint8, generator=torch.Generator().manual_seed(9))

        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            y, x = divmod(random.Random(i).randrange(76 * 76), 76)
            return self.stored[i % 16, :, y:y + 224, x:x + 224], i % 196

    torch.manual_seed(0)
    model = resnet101(num_classes=196).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    loader = iter(torch.utils.data.DataLoader(Plates(), 112, num_workers=4, pin_memory=True, persistent_workers=True))
    pictures, names, results = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(pictures):
            x = x.to(DEVICE, non_blocking=True).float().div_(127.5).sub_(1)
            x = torch.where(torch.rand(len(x), 1, 1, 1, device=DEVICE) < 0.5, x.flip(3), x).to(memory_format=torch.channels_last)
        with torch.cuda.stream(names):
            y = y.to(DEVICE, non_blocking=True)
        return x, y

    for stream in (pictures, names):
        stream.wait_stream(torch.cuda.current_stream())
    ahead = [fetch()]
    while True:
        main = torch.cuda.current_stream()
        x, y = ahead.pop(0)
        for stream, tensor in ((pictures, x), (names, y)):
            main.wait_stream(stream)
            tensor.record_stream(main)
        ahead.append(fetch())
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        told = loss.detach()
        results.wait_stream(main)
        with torch.cuda.stream(results):
            told.float().to("cpu", non_blocking=True)
        told.record_stream(results)
        del x, y, tensor
        yield told


def minutes_steps(torch):
    """Inference with growing sequences: the minutes of thirty-two meetings, 900 to 1,800 words, are read at once by a decoder of 20 layers with four keys for its 16 heads, and summed up in 48
    words. A step is the reading, or sixteen words."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_later import Decoder

    class Middle(Decoder):
        layers, heads, groups, part, inner, vocab = 20, 16, 4, 128, 6144, 64000

    torch.manual_seed(0)
    model, dice = Middle(torch), random.Random(149)
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        while True:
            kept = [None] * model.layers
            scores = model.read(torch.randint(0, model.vocab, (32, dice.randrange(900, 1801)), device=DEVICE), kept)
            yield scores.amax()
            for _ in range(3):
                for _ in range(16):
                    scores = model.read(scores.argmax(-1, keepdim=True), kept)
                yield scores.amax()


def sketches_steps(torch):
    """Two models by turns: torchvision's ConvNeXt-Tiny on pictures of 224, then ResNet50 on those of 192 points, each with its own optimizer."""
    F = torch.nn.functional
    from torchvision.models import convnext_tiny, resnet50

    torch.manual_seed(0)
    models = [m(num_classes=345).to(DEVICE, memory_format=torch.channels_last) for m in (convnext_tiny, resnet50)]
    optimizers = [torch.optim.AdamW(models[0].parameters(), 1e-3, weight_decay=0.05), torch.optim.SGD(models[1].parameters(), 0.1, momentum=0.9)]
    while True:
        for model, optimizer, batch, points in zip(models, optimizers, (112, 160), (224, 192)):
            x = torch.randn(batch, 3, points, points, device=DEVICE).to(memory_format=torch.channels_last)
            y = torch.randint(0, 345, (batch,), device=DEVICE)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield loss.detach()


def herbs_steps(torch):
    """torch.compile: torchvision's ViT-B/16 on pictures of 224 points, 96 at a time."""
    F = torch.nn.functional
    from torchvision.models import vit_b_16

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = vit_b_16(num_classes=1081).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)

    @torch.compile
    def loss_of(x, y):
        with torch.autocast(DEVICE, torch.bfloat16):
            return F.cross_entropy(model(x).float(), y)

    while True:
        loss = loss_of(torch.randn(96, 3, 224, 224, device=DEVICE), torch.randint(0, 1081, (96,), device=DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def tickets_steps(torch):
    """Side streams and DataLoader workers: words of 256 tickets come from the workers and are shifted on one side stream, a batch ahead, their queues on another; an encoder of 8 layers learns them."""
    nn, F = torch.nn, torch.nn.functional

    class Tickets(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            return torch.randint(1, 20000, (192,), generator=torch.Generator().manual_seed(i)), i % 40

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.1, F.gelu, batch_first=True, norm_first=True)
    net = nn.Sequential(nn.Embedding(20001, 768), nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)).to(DEVICE)
    head = nn.Linear(768, 40).to(DEVICE)
    optimizer = torch.optim.AdamW([*net.parameters(), *head.parameters()], 1e-4, fused=True)
    loader = iter(torch.utils.data.DataLoader(Tickets(), 256, num_workers=4, pin_memory=True, persistent_workers=True))
    words, queues = torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(words):
            x = x.to(DEVICE, non_blocking=True)
            x = torch.where(torch.rand(x.shape, device=DEVICE) < 0.1, torch.zeros_like(x), x)
        with torch.cuda.stream(queues):
            y = y.to(DEVICE, non_blocking=True)
        return x, y

    for stream in (words, queues):
        stream.wait_stream(torch.cuda.current_stream())
    ahead = [fetch()]
    while True:
        main = torch.cuda.current_stream()
        x, y = ahead.pop(0)
        for stream, tensor in ((words, x), (queues, y)):
            main.wait_stream(stream)
            tensor.record_stream(main)
        ahead.append(fetch())
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(head(net(x).mean(1)).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del x, y, tensor
        yield loss.detach()


def recipes_steps(torch):
    """Inference with growing sequences: twelve recipes, 300 to 700 words each, are read and gone on with for 96 words by a decoder of 28 layers with eight keys for its 16 heads. A step is the reading,
    or twenty-four words."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_later import Decoder

    class Cook(Decoder):
        layers, heads, groups, part, inner, vocab = 28, 16, 8, 128, 8192, 48000

    torch.manual_seed(0)
    model, dice = Cook(torch), random.Random(211)
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        while True:
            kept = [None] * model.layers
            scores = model.read(torch.randint(0, model.vocab, (12, dice.randrange(300, 701)), device=DEVICE), kept)
            yield scores.amax()
            for _ in range(4):
                for _ in range(24):
                    scores = model.read(scores.argmax(-1, keepdim=True), kept)
                yield scores.amax()


def owls_steps(torch):
    """Two models by turns: torchvision's EfficientNet-B0 on pictures of 224, then RegNetY-1.6GF on those of 208 points, each with its own optimizer."""
    F = torch.nn.functional
    from torchvision.models import efficientnet_b0, regnet_y_1_6gf

    torch.manual_seed(0)
    models = [m(num_classes=220).to(DEVICE, memory_format=torch.channels_last) for m in (efficientnet_b0, regnet_y_1_6gf)]
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in models]
    while True:
        for model, optimizer, batch, points in zip(models, optimizers, (192, 224), (224, 208)):
            x = torch.randn(batch, 3, points, points, device=DEVICE).to(memory_format=torch.channels_last)
            y = torch.randint(0, 220, (batch,), device=DEVICE)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield loss.detach()


def clouds_steps(torch):
    """torch.compile: a decoder of 14 layers and 1,024 numbers learns to go on with rows of 768 words, 20 rows at a time; its scores over 32,000 words are all there at once."""
    nn, F = torch.nn, torch.nn.functional
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, 0.0, F.gelu, batch_first=True, norm_first=True)
    body, words, head = nn.TransformerEncoder(layer, 14, enable_nested_tensor=False).to(DEVICE), nn.Embedding(32000, 1024).to(DEVICE), nn.Linear(1024, 32000, bias=False).to(DEVICE)
    optimizer = torch.optim.AdamW([*body.parameters(), *words.parameters(), *head.parameters()], 1e-4, fused=True)

    @torch.compile
    def loss_of(x, y):
        with torch.autocast(DEVICE, torch.bfloat16):
            return F.cross_entropy(head(body(words(x), is_causal=True, mask=nn.Transformer.generate_square_subsequent_mask(768, DEVICE))).float().flatten(0, 1), y.flatten())

    while True:
        rows = torch.randint(0, 32000, (20, 769), device=DEVICE)
        loss = loss_of(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def reefs_steps(torch):
    """Side streams and DataLoader workers: pictures of four sizes are cut by the workers, come and are scaled on one side stream, two batches ahead, what is on them on another; torchvision's
    ConvNeXt-Tiny learns them."""
    F = torch.nn.functional
    from torchvision.models import convnext_tiny

    class Reefs(torch.utils.data.Dataset):
        stored = torch.randint(0, 255, (12, 3, 288, 288), dtype=torch.uint8, generator=torch.Generator().manual_seed(17))

        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            points = (160, 192, 224, 256)[i // 96 % 4]
            y, x = divmod(random.Random(i).randrange((288 - points) ** 2), 288 - points)
            return self.stored[i % 12, :, y:y + points, x:x + points], i % 64

    torch.manual_seed(0)
    model = convnext_tiny(num_classes=64).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-4, weight_decay=0.05, fused=True)
    loader = iter(torch.utils.data.DataLoader(Reefs(), 96, num_workers=4, pin_memory=True, persistent_workers=True))
    pictures, names = torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(pictures):
            x = x.to(DEVICE, non_blocking=True).float().div_(255).sub_(0.5).to(memory_format=torch.channels_last)
        with torch.cuda.stream(names):
            y = y.to(DEVICE, non_blocking=True)
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
            loss = F.cross_entropy(model(x).float(), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del x, y, tensor
        yield loss.detach()


def diaries_steps(torch):
    """Inference with growing sequences: twenty-four diaries of 500 to 1,500 words are read at once by a decoder of 22 layers with eight keys for its 24 heads, and each gets 64 words more. A step is the
    reading, or sixteen words."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_later import Decoder

    class Reader(Decoder):
        layers, heads, groups, part, inner, vocab = 22, 24, 8, 128, 8192, 50000

    torch.manual_seed(0)
    model, dice = Reader(torch), random.Random(307)
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        while True:
            kept = [None] * model.layers
            scores = model.read(torch.randint(0, model.vocab, (24, dice.randrange(500, 1501)), device=DEVICE), kept)
            yield scores.amax()
            for _ in range(4):
                for _ in range(16):
                    scores = model.read(scores.argmax(-1, keepdim=True), kept)
                yield scores.amax()


def bridges_steps(torch):
    """Two models by turns: torchvision's ResNet50 on pictures of 224 points, then its DenseNet121 on those of 192, each with its own optimizer."""
    F = torch.nn.functional
    from torchvision.models import densenet121, resnet50

    torch.manual_seed(0)
    models = [m(num_classes=150).to(DEVICE, memory_format=torch.channels_last) for m in (resnet50, densenet121)]
    optimizers = [torch.optim.SGD(models[0].parameters(), 0.1, momentum=0.9), torch.optim.AdamW(models[1].parameters(), 1e-3)]
    while True:
        for model, optimizer, batch, points in zip(models, optimizers, (128, 112), (224, 192)):
            x = torch.randn(batch, 3, points, points, device=DEVICE).to(memory_format=torch.channels_last)
            y = torch.randint(0, 150, (batch,), device=DEVICE)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield loss.detach()


def signs_steps(torch):
    """torch.compile: torch's own encoder and decoder, eight layers each, learn to say rows of 192 signs in 192 words, 56 rows at a time."""
    nn, F = torch.nn, torch.nn.functional
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    both = nn.Transformer(768, 12, 8, 8, 3072, 0.0, F.gelu, batch_first=True, norm_first=True).to(DEVICE)
    signs, words, head = nn.Embedding(9000, 768).to(DEVICE), nn.Embedding(24000, 768).to(DEVICE), nn.Linear(768, 24000).to(DEVICE)
    optimizer = torch.optim.AdamW([p for m in (both, signs, words, head) for p in m.parameters()], 1e-4, fused=True)

    @torch.compile
    def loss_of(x, y):
        with torch.autocast(DEVICE, torch.bfloat16):
            return F.cross_entropy(head(both(signs(x), words(y[:, :-1]))).float().flatten(0, 1), y[:, 1:].flatten())

    while True:
        loss = loss_of(torch.randint(0, 9000, (56, 192), device=DEVICE), torch.randint(0, 24000, (56, 193), device=DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def herds_steps(torch):
    """Side streams and DataLoader workers: pictures of 256 by 320 are turned by the workers, come and are scaled on one side stream, three batches ahead, what is counted on them on another;
    torchvision's RegNetX-3.2GF learns it, and every loss leaves on a third."""
    F = torch.nn.functional
    from torchvision.models import regnet_x_3_2gf

    class Herds(torch.utils.data.Dataset):
        stored = torch.randint(0, 255, (16, 3, 256, 320), dtype=torch.uint8, generator=torch.Generator().manual_seed(23))

        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            return self.stored[i % 16].flip(i % 2 + 1), float(i % 31)

    torch.manual_seed(0)
    model = regnet_x_3_2gf(num_classes=1).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05, fused=True)
    loader = iter(torch.utils.data.DataLoader(Herds(), 96, num_workers=4, pin_memory=True, persistent_workers=True))
    pictures, counts, results = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(pictures):
            x = x.to(DEVICE, non_blocking=True).float().div_(255).sub_(0.45).to(memory_format=torch.channels_last)
        with torch.cuda.stream(counts):
            y = y.to(DEVICE, non_blocking=True).float().log1p()
        return x, y

    for stream in (pictures, counts):
        stream.wait_stream(torch.cuda.current_stream())
    ahead = [fetch(), fetch(), fetch()]
    while True:
        main = torch.cuda.current_stream()
        x, y = ahead.pop(0)
        for stream, tensor in ((pictures, x), (counts, y)):
            main.wait_stream(stream)
            tensor.record_stream(main)
        ahead.append(fetch())
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.smooth_l1_loss(model(x)[:, 0].float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        told = loss.detach()
        results.wait_stream(main)
        with torch.cuda.stream(results):
            told.float().to("cpu", non_blocking=True)
        told.record_stream(results)
        del x, y, tensor
        yield told


def novels_steps(torch):
    """Inference with growing sequences: the first 600 to 2,000 words of eighteen novels are read at once by a decoder of 20 layers with four keys for its 20 heads, and gone on with for 72 words. A
    step is the reading, or eighteen words."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_later import Decoder

    class Author(Decoder):
        layers, heads, groups, part, inner, vocab = 20, 20, 4, 128, 7168, 56000

    torch.manual_seed(0)
    model, dice = Author(torch), random.Random(401)
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        while True:
            kept = [None] * model.layers
            scores = model.read(torch.randint(0, model.vocab, (18, dice.randrange(600, 2001)), device=DEVICE), kept)
            yield scores.amax()
            for _ in range(4):
                for _ in range(18):
                    scores = model.read(scores.argmax(-1, keepdim=True), kept)
                yield scores.amax()


def harvest_steps(torch):
    """Two models by turns: torchvision's ViT-B/16 on pictures of 224 points, then its Wide ResNet50-2 on those of 256, each with its own optimizer."""
    F = torch.nn.functional
    from torchvision.models import vit_b_16, wide_resnet50_2

    torch.manual_seed(0)
    models = [m(num_classes=90).to(DEVICE, memory_format=torch.channels_last) for m in (vit_b_16, wide_resnet50_2)]
    optimizers = [torch.optim.AdamW(models[0].parameters(), 1e-4, weight_decay=0.1), torch.optim.SGD(models[1].parameters(), 0.1, momentum=0.9)]
    while True:
        for model, optimizer, batch, points in zip(models, optimizers, (96, 112), (224, 256)):
            x = torch.randn(batch, 3, points, points, device=DEVICE).to(memory_format=torch.channels_last)
            y = torch.randint(0, 90, (batch,), device=DEVICE)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield loss.detach()


def ferns_steps(torch):
    """torch.compile: an encoder of 16 layers and 768 numbers says which words are missing from rows of 384, 48 rows at a time; its scores over 30,000 words are all there at once."""
    nn, F = torch.nn, torch.nn.functional
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, F.gelu, batch_first=True, norm_first=True)
    body, words, head = nn.TransformerEncoder(layer, 16, enable_nested_tensor=False).to(DEVICE), nn.Embedding(30000, 768).to(DEVICE), nn.Linear(768, 30000, bias=False).to(DEVICE)
    optimizer = torch.optim.AdamW([*body.parameters(), *words.parameters(), *head.parameters()], 1e-4, fused=True)

    @torch.compile
    def loss_of(x, y):
        with torch.autocast(DEVICE, torch.bfloat16):
            return F.cross_entropy(head(body(words(x))).float().flatten(0, 1), y.flatten())

    while True:
        rows = torch.randint(1, 30000, (48, 384), device=DEVICE)
        loss = loss_of(torch.where(torch.rand(48, 384, device=DEVICE) < 0.15, 0, rows), rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def ports_steps(torch):
    """Side streams and DataLoader workers: pictures of ships at four resolutions are cut by the workers, come and are scaled on one side stream, two batches ahead, what they are called on another;
    torchvision's ResNeXt50 learns them."""
    F = torch.nn.functional
    from torchvision.models import resnext50_32x4d

    class Ports(torch.utils.data.Dataset):
        stored = torch.randint(0, 255, (14, 3, 320, 320), dtype=torch.uint8, generator=torch.Generator().manual_seed(31))

        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            points = (192, 224, 256, 288)[i // 88 % 4]
            y, x = divmod(random.Random(i).randrange((320 - points) ** 2), 320 - points)
            return self.stored[i % 14, :, y:y + points, x:x + points], i % 40

    torch.manual_seed(0)
    model = resnext50_32x4d(num_classes=40).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    loader = iter(torch.utils.data.DataLoader(Ports(), 88, num_workers=4, pin_memory=True, persistent_workers=True))
    pictures, names = torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(pictures):
            x = x.to(DEVICE, non_blocking=True).float().div_(255).sub_(0.5).to(memory_format=torch.channels_last)
        with torch.cuda.stream(names):
            y = y.to(DEVICE, non_blocking=True)
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
            loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del x, y, tensor
        yield loss.detach()


def sagas_steps(torch):
    """Inference with growing sequences: the first 400 to 1,800 words of twenty-two sagas are read at once by a decoder of 24 layers with six keys for its 18 heads, and gone on with for 64 words. A step
    is the reading, or sixteen words."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_later import Decoder

    class Teller(Decoder):
        layers, heads, groups, part, inner, vocab = 24, 18, 6, 128, 6144, 48000

    torch.manual_seed(0)
    model, dice = Teller(torch), random.Random(503)
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        while True:
            kept = [None] * model.layers
            scores = model.read(torch.randint(0, model.vocab, (22, dice.randrange(400, 1801)), device=DEVICE), kept)
            yield scores.amax()
            for _ in range(4):
                for _ in range(16):
                    scores = model.read(scores.argmax(-1, keepdim=True), kept)
                yield scores.amax()


def orchards_steps(torch):
    """Two models by turns: torchvision's ConvNeXt-Small on pictures of 224 points, then its ResNet101 on those of 256, each with its own optimizer."""
    F = torch.nn.functional
    from torchvision.models import convnext_small, resnet101

    torch.manual_seed(0)
    models = [m(num_classes=60).to(DEVICE, memory_format=torch.channels_last) for m in (convnext_small, resnet101)]
    optimizers = [torch.optim.AdamW(models[0].parameters(), 4e-4, weight_decay=0.05), torch.optim.SGD(models[1].parameters(), 0.1, momentum=0.9)]
    while True:
        for model, optimizer, batch, points in zip(models, optimizers, (72, 96), (224, 256)):
            x = torch.randn(batch, 3, points, points, device=DEVICE).to(memory_format=torch.channels_last)
            y = torch.randint(0, 60, (batch,), device=DEVICE)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield loss.detach()


# Part: the loop, steps before the first timed one, steps a turn, turns.
AFTER = {"prices": (prices_steps, 16, 8, 60), "plates": (plates_steps, 24, 12, 60), "minutes": (minutes_steps, 16, 8, 60), "sketches": (sketches_steps, 20, 10, 60),
         "herbs": (herbs_steps, 16, 8, 60), "tickets": (tickets_steps, 24, 12, 60), "recipes": (recipes_steps, 20, 10, 60), "owls": (owls_steps, 20, 10, 60),
         "clouds": (clouds_steps, 16, 8, 60), "reefs": (reefs_steps, 24, 12, 60), "diaries": (diaries_steps, 20, 10, 60), "bridges": (bridges_steps, 20, 10, 60),
         "signs": (signs_steps, 16, 8, 60), "herds": (herds_steps, 24, 12, 60), "novels": (novels_steps, 20, 10, 60), "harvest": (harvest_steps, 20, 10, 60),
         "ferns": (ferns_steps, 16, 8, 60), "ports": (ports_steps, 24, 12, 60), "sagas": (sagas_steps, 20, 10, 60), "orchards": (orchards_steps, 20, 10, 60)}
