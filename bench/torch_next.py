"""Training and inference loops written when what streams wait for, and events that keep the time only where it is asked for, were finished: nothing of that was changed for them. Two more
(choirs, debates) were written when kinds of steps that do not share their pages were packed anew above what stays: nothing was changed for them. As in torch_models.py each is a generator, one step
each; bench/torch_streams.py measures them.
"""
import random

DEVICE = "cuda"


def frescoes_steps(torch):
    """torch.compile: a masked autoencoder. Twelve layers of width 768 see a quarter of the 196 parts of each of 112 frescoes, six of width 512 paint what is missing."""
    nn, F = torch.nn, torch.nn.functional
    rows, places, seen = 112, 196, 49

    class Layer(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, 2))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.second(x))))

    class Painter(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts, self.middle, self.paint = nn.Linear(768, 768), nn.Linear(768, 512), nn.Linear(512, 768)
            self.first_places, self.second_places = nn.Parameter(torch.zeros(places, 768)), nn.Parameter(torch.zeros(places, 512))
            self.missing = nn.Parameter(torch.zeros(1, 1, 512))
            self.readers = nn.Sequential(*(Layer(768, 12) for _ in range(12)), nn.LayerNorm(768))
            self.painters = nn.Sequential(*(Layer(512, 16) for _ in range(6)), nn.LayerNorm(512))

        def forward(self, x):
            x = x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 1, 4, 5).reshape(rows, places, 768)
            order = torch.rand(rows, places, device=x.device).argsort(1)
            shown = order[:, :seen, None].expand(-1, -1, 768)
            h = self.middle(self.readers((self.parts(x) + self.first_places).gather(1, shown)))
            h = torch.cat((h, self.missing.to(h.dtype).expand(rows, places - seen, -1)), 1)
            h = h.gather(1, order.argsort(1)[:, :, None].expand(-1, -1, 512))
            made = self.paint(self.painters(h + self.second_places)).float()
            wrong = (made - F.layer_norm(x, (768,))).square().mean(2)
            return wrong.gather(1, order[:, seen:]).mean()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Painter().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1.5e-4, (0.9, 0.95), weight_decay=0.05)

    @torch.compile
    def loss_of(x):
        with torch.autocast(DEVICE, torch.bfloat16):
            return model(x)

    while True:
        loss = loss_of(torch.randn(rows, 3, 224, 224, device=DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def stamps_steps(torch):
    """Side streams and DataLoader workers: pictures of 299 points are cut by the workers, come on one side stream, two batches ahead, and get other lights and sides there; what is on them comes on
    another, and how much each counts. torchvision's Inception-v3 learns them with its second head, and its five best guesses leave on a third."""
    F = torch.nn.functional
    from torchvision.models import inception_v3

    class Stamps(torch.utils.data.Dataset):
        stored = torch.randint(0, 255, (12, 3, 340, 340), dtype=torch.uint8, generator=torch.Generator().manual_seed(43))

        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            y, x = divmod(random.Random(i).randrange(41 * 41), 41)
            return self.stored[i % 12, :, y:y + 299, x:x + 299], i % 240, 0.5 + i % 3 / 2

    torch.manual_seed(0)
    model = inception_v3(num_classes=240, transform_input=False, init_weights=False).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(model.parameters(), 0.01, 0.9, eps=1.0, momentum=0.9, weight_decay=4e-5)
    loader = iter(torch.utils.data.DataLoader(Stamps(), 96, num_workers=4, pin_memory=True, persistent_workers=True))
    pictures, names, results = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        x, y, counts = next(loader)
        with torch.cuda.stream(pictures):
            x = x.to(DEVICE, non_blocking=True).to(memory_format=torch.channels_last).float().div_(255)
            light = torch.rand(2, len(x), 1, 1, 1, device=DEVICE)
            x = x.mul_(light[0].add(0.5)).add_(light[1] - 1)
            x = torch.where(torch.rand(len(x), 1, 1, 1, device=DEVICE) < 0.5, x, x.flip(3))
        with torch.cuda.stream(names):
            y, counts = y.to(DEVICE, non_blocking=True), counts.to(DEVICE, non_blocking=True).float()
        return x, y, counts

    for stream in (pictures, names):
        stream.wait_stream(torch.cuda.current_stream())
    ahead = [fetch(), fetch()]
    while True:
        main = torch.cuda.current_stream()
        x, y, counts = ahead.pop(0)
        for stream, tensor in ((pictures, x), (names, y), (names, counts)):
            main.wait_stream(stream)
            tensor.record_stream(main)
        ahead.append(fetch())
        with torch.autocast(DEVICE, torch.bfloat16):
            guesses, second = (t.float() for t in model(x))
        loss = ((F.cross_entropy(guesses, y, reduction="none") + 0.4 * F.cross_entropy(second, y, reduction="none")) * counts).mean()
        results.wait_stream(main)
        with torch.cuda.stream(results):
            guesses.detach().topk(5).indices.to("cpu", non_blocking=True)
            guesses.record_stream(results)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del x, y, counts, tensor, guesses, second
        yield loss.detach()


def riddles_steps(torch):
    """Inference with growing sequences: 800 to 2,000 words are read once, then forty riddles of 60 to 400 words after them, by a decoder of 26 layers with three keys for its
    18 heads. Answers of 16 to 96 words leave when they end, and the batch shrinks. A step is the reading, or eight words."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_later import Decoder

    class Guesser(Decoder):
        layers, heads, groups, part, inner, vocab = 26, 18, 3, 128, 6144, 36000

    torch.manual_seed(0)
    model, dice = Guesser(torch), random.Random(809)
    with torch.no_grad(), sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]):
        while True:
            kept = [None] * model.layers
            model.read(torch.randint(0, model.vocab, (1, dice.randrange(800, 2001)), device=DEVICE), kept)
            kept = [(k.expand(40, -1, -1, -1), v.expand(40, -1, -1, -1)) for k, v in kept]
            scores = model.read(torch.randint(0, model.vocab, (40, dice.randrange(60, 401)), device=DEVICE), kept)
            yield scores.amax()
            left = [dice.randrange(2, 13) for _ in range(40)]
            while left:
                for _ in range(8):
                    scores = model.read(scores.argmax(-1, keepdim=True), kept)
                yield scores.amax()
                rows = [i for i, n in enumerate(left) if n > 1]
                if rows and len(rows) < len(left):
                    stay = torch.tensor(rows, device=DEVICE)
                    scores = scores[stay]
                    for i in range(model.layers):
                        kept[i] = tuple(t[stay] for t in kept[i])
                left = [left[i] - 1 for i in rows]


def looms_steps(torch):
    """Two models by turns: torchvision's RegNetX-8GF on 88 pictures of 224 points, then a network of 14 gated convolutions that goes on with 30 texts of 512 words; each has its own optimizer."""
    nn, F = torch.nn, torch.nn.functional
    from torchvision.models import regnet_x_8gf

    class Gate(nn.Module):
        def __init__(self, apart):
            super().__init__()
            self.reach, self.norm, self.see, self.out = 3 * apart, nn.LayerNorm(640), nn.Conv1d(640, 1280, 4, dilation=apart), nn.Linear(640, 640)

        def forward(self, x):
            h = self.see(F.pad(self.norm(x).transpose(1, 2), (self.reach, 0)))
            return x + self.out(F.glu(h, 1).transpose(1, 2))

    torch.manual_seed(0)
    pictures = regnet_x_8gf(num_classes=90).to(DEVICE, memory_format=torch.channels_last)
    texts = nn.Sequential(nn.Embedding(18000, 640), *(Gate(1 << i % 4) for i in range(14)), nn.LayerNorm(640), nn.Linear(640, 18000)).to(DEVICE)
    learners = [torch.optim.SGD(pictures.parameters(), 0.05, momentum=0.9, weight_decay=5e-5, nesterov=True), torch.optim.Adam(texts.parameters(), 4e-4)]
    while True:
        x = torch.randn(88, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last)
        y = torch.randint(0, 90, (88,), device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(pictures(x).float(), y)
        loss.backward()
        learners[0].step()
        learners[0].zero_grad(set_to_none=True)
        yield loss.detach()
        words = torch.randint(0, 18000, (30, 513), device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(texts(words[:, :-1]).float().flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(texts.parameters(), 0.5)
        learners[1].step()
        learners[1].zero_grad(set_to_none=True)
        yield loss.detach()


def choirs_steps(torch):
    """Two models by turns: torchvision's MaxViT-T on 40 pictures of 224 points, then a network of convolutions, five levels down and up again, that takes the four voices of 20 choirs apart, four
    seconds of two channels each; each has its own optimizer."""
    nn, F = torch.nn, torch.nn.functional
    from torchvision.models import maxvit_t

    class Level(nn.Module):
        """One level: four times fewer moments and more channels, what is below it, and back with what was there."""
        def __init__(self, come, inner, go, below):
            super().__init__()
            self.down, self.mix = nn.Conv1d(come, inner, 8, 4, 2), nn.Conv1d(inner, 2 * inner, 1)
            self.below = below
            self.turn, self.up = nn.Conv1d(inner, 2 * inner, 3, padding=1), nn.ConvTranspose1d(inner, go, 8, 4, 2)
            self.norm = nn.GroupNorm(4, inner)

        def forward(self, x):
            h = F.glu(self.mix(F.gelu(self.norm(self.down(x)))), 1)
            return self.up(F.glu(self.turn(h + self.below(h)), 1))

    torch.manual_seed(0)
    pictures, voices = maxvit_t(num_classes=130), nn.Sequential(*(nn.Conv1d(1024, 1024, 3, padding=1 << i, dilation=1 << i) for i in range(3)))
    for come, inner, go in ((512, 1024, 512), (256, 512, 256), (128, 256, 128), (64, 128, 64), (2, 64, 8)):
        voices = Level(come, inner, go, voices)
    pictures, voices = pictures.to(DEVICE, memory_format=torch.channels_last), voices.to(DEVICE)
    learners = [torch.optim.AdamW(pictures.parameters(), 1e-3, weight_decay=0.05), torch.optim.Adam(voices.parameters(), 3e-4, (0.8, 0.99), fused=True)]
    while True:
        x = torch.randn(40, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last)
        y = torch.randint(0, 130, (40,), device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(pictures(x).float(), y, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(pictures.parameters(), 1.0)
        learners[0].step()
        learners[0].zero_grad(set_to_none=True)
        yield loss.detach()
        sung = torch.randn(20, 4, 2, 1 << 16, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            heard = voices(sung.sum(1)).float().unflatten(1, (4, 2))
        loss = F.l1_loss(heard, sung)
        loss.backward()
        learners[1].step()
        learners[1].zero_grad(set_to_none=True)
        yield loss.detach()


def debates_steps(torch):
    """Inference with growing sequences: twenty-four debates of 3 to 7 turns. Every turn adds 40 to 460 words, read at once after all that was said, and is answered with 24 to 60 words, by a decoder
    of 20 layers with six keys for its 24 heads. What was read is kept over the turns; then other debates begin. A step is the reading, or twelve words."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_later import Decoder

    class Speaker(Decoder):
        layers, heads, groups, part, inner, vocab = 20, 24, 6, 128, 9216, 44000

    torch.manual_seed(0)
    model, dice = Speaker(torch), random.Random(907)
    with torch.no_grad(), sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]):
        while True:
            kept = [None] * model.layers
            for _ in range(dice.randrange(3, 8)):
                scores = model.read(torch.randint(0, model.vocab, (24, dice.randrange(40, 461)), device=DEVICE), kept)
                yield scores.amax()
                for _ in range(dice.randrange(2, 6)):
                    for _ in range(12):
                        scores = model.read((scores / 0.8).softmax(-1).multinomial(1), kept)
                    yield scores.amax()


# Part: the loop, steps before the first timed one, steps a turn, turns.
NEXT = {"frescoes": (frescoes_steps, 16, 8, 60), "stamps": (stamps_steps, 24, 12, 60), "riddles": (riddles_steps, 20, 10, 60), "looms": (looms_steps, 20, 10, 60),
        "choirs": (choirs_steps, 20, 10, 60), "debates": (debates_steps, 20, 10, 60)}
