"""Loops that nobody wrote: a seed draws a program, its models, sizes and habits. `drawn:7` is the loop of seed 7 for bench/torch_streams.py and bench/torch_record.py. As in torch_models.py each loop is a
generator, one step each.

What is drawn: pictures (one model), turns (two or three), teacher (a large model tells a small one), texts, caches (reading, then word by word), rivals (a generator and a discriminator); of each the
models, the batch, the optimizer and its form, precision, and habits: several sizes, micro-batches, a test now and then, a mean of the parameters, gradients that are cut, a last batch that is smaller.
"""
import random

DEVICE = "cuda"

# torchvision's models, and the pictures of 224 points that one batch may have: what they keep is 6 to 14 GiB
MODELS = {
    "resnet18": 480, "resnet34": 360, "resnet50": 160, "resnet101": 110, "resnext50_32x4d": 120, "wide_resnet50_2": 120, "densenet121": 100, "densenet169": 80, "vgg11": 160, "vgg16": 110,
    "mobilenet_v2": 240, "mobilenet_v3_large": 300, "efficientnet_b0": 160, "efficientnet_b3": 80, "regnet_y_3_2gf": 130, "regnet_x_1_6gf": 200, "shufflenet_v2_x1_0": 640, "squeezenet1_1": 400,
    "mnasnet1_0": 240, "convnext_tiny": 100, "convnext_small": 70, "vit_b_16": 110, "vit_b_32": 300, "swin_t": 90, "swin_s": 60,
}
FIXED = ("vit", "swin")  # pictures of one size only


class Habits:
    """What a person would choose, drawn."""

    def __init__(self, dice):
        self.half = dice.random() < 0.7
        self.optimizer = dice.choice(("SGD", "SGD", "AdamW", "AdamW", "RMSprop"))
        self.form = dice.choice(({"foreach": True}, {"foreach": True}, {"fused": True}, {"foreach": False}))
        self.to_none = dice.random() < 0.85
        self.pieces = dice.choice((1, 1, 1, 2, 4))
        self.test_every = dice.choice((0, 0, 0, 12, 25))
        self.mean = dice.random() < 0.25
        self.cut = dice.random() < 0.3
        self.epoch = dice.choice((0, 0, 9, 17))  # steps, of which the last is on a smaller batch

    def make(self, torch, parameters):
        parameters = list(parameters)
        if self.optimizer == "RMSprop":
            return torch.optim.RMSprop(parameters, 1e-4, momentum=0.9)
        if self.optimizer == "SGD":
            return torch.optim.SGD(parameters, 0.01, momentum=0.9, **self.form)
        return torch.optim.AdamW(parameters, 1e-4, **self.form)

    def autocast(self, torch):
        import contextlib
        return torch.autocast(DEVICE, torch.bfloat16) if self.half else contextlib.nullcontext()

    def batch(self, step, most):
        return max(1, most * 3 // 8) if self.epoch and step % self.epoch == self.epoch - 1 else most

    def learn(self, torch, model, optimizer, means, loss_of, make_batch, batch):
        """One step, in pieces."""
        loss = None
        for _ in range(self.pieces):
            data = make_batch(max(1, batch // self.pieces))
            with self.autocast(torch):
                loss = loss_of(*data)
            (loss / self.pieces).backward()
        if self.cut:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=self.to_none)
        if means:
            with torch.no_grad():
                torch._foreach_lerp_(means, [p.detach() for p in model.parameters()], 0.01)
        return loss.detach()


def copies(torch, model, wanted):
    return [p.detach().clone() for p in model.parameters()] if wanted else []


def vision(torch, dice, classes, share=1.0):
    """A model, and what makes a batch of so many pictures for it."""
    import torchvision
    name = dice.choice(sorted(MODELS))
    points = [224] if name.startswith(FIXED) else dice.choice(([224], [224], [192], [256], [160, 192, 224], [192, 224, 256, 288], [128, 160, 192, 224, 256, 288]))
    most = max(4, int(MODELS[name] * share * dice.uniform(0.35, 1.0) * (224 / max(points)) ** 2))
    model = getattr(torchvision.models, name)(num_classes=classes).to(DEVICE, memory_format=torch.channels_last)

    def make(batch):
        size = dice.choice(points)
        return torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last), torch.randint(0, classes, (batch,), device=DEVICE)

    return model, make, most, f"{name} {'x'.join(map(str, points))}, {most} pictures"


def pictures(torch, dice):
    F, habits, classes = torch.nn.functional, Habits(dice), dice.choice((10, 100, 1000))
    model, make, most, words = vision(torch, dice, classes)
    optimizer, means = habits.make(torch, model.parameters()), copies(torch, model, habits.mean)
    yield words
    step = 0
    while True:
        yield habits.learn(torch, model, optimizer, means, lambda x, y: F.cross_entropy(model(x).float(), y), make, habits.batch(step, most))
        step += 1
        if habits.test_every and step % habits.test_every == 0:
            with torch.no_grad(), habits.autocast(torch):
                for _ in range(3):
                    x, y = make(most * 2 // habits.pieces)
                    wrong = (model(x).argmax(1) != y).float().mean()
                    del x, y
            yield wrong


def turns(torch, dice):
    F, count, order = torch.nn.functional, dice.choice((2, 2, 2, 3)), dice.choice(("in turn", "in turn", "in turn", "more of one", "at random"))
    parts, words = [], []
    for _ in range(count):
        habits = Habits(dice)
        model, make, most, said = vision(torch, dice, dice.choice((10, 100, 400)), 0.8)
        parts.append((habits, model, habits.make(torch, model.parameters()), make, most))
        words.append(said)
    yield f"{order}: " + "; ".join(words)
    step = 0
    while True:
        i = dice.randrange(count) if order == "at random" else step % count if order == "in turn" else max(0, step % (count + 2) - 2)
        habits, model, optimizer, make, most = parts[i]
        yield habits.learn(torch, model, optimizer, [], lambda x, y, m=model: F.cross_entropy(m(x).float(), y), make, most)
        step += 1


def teacher(torch, dice):
    F, habits, classes = torch.nn.functional, Habits(dice), 100
    large, _, _, first = vision(torch, dice, classes, 0.5)
    pupil, make, most, second = vision(torch, dice, classes, 0.7)
    if first.startswith(FIXED) and not second.startswith(FIXED):
        large, pupil, first, second = pupil, large, second, first  # the one that takes all sizes tells
        most = min(most, 40)

        def make(batch):
            return torch.randn(batch, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last), None
    optimizer, means = habits.make(torch, pupil.parameters()), copies(torch, pupil, habits.mean)
    yield f"{first} tells {second}"

    def loss_of(x, _):
        with torch.no_grad():
            said = large(x).float().softmax(1)
        return F.kl_div(pupil(x).float().log_softmax(1), said, reduction="batchmean")

    step = 0
    while True:
        yield habits.learn(torch, pupil, optimizer, means, loss_of, make, habits.batch(step, most))
        step += 1


def texts(torch, dice):
    nn, F, habits = torch.nn, torch.nn.functional, Habits(dice)
    heads, layers, words = dice.choice((8, 12, 16)), dice.randrange(4, 21), dice.choice((8000, 30000, 50304))
    width, causal, kind = heads * 64, dice.random() < 0.5, dice.choice(("one", "drawn", "buckets"))
    most = dice.choice((256, 512, 1024))
    rows = max(1, int(dice.uniform(0.4, 1) * 9e9 / (most * (layers * width * 40 + words * 10))))
    lengths = [most] if kind == "one" else [most * k // 6 for k in range(2, 7)] if kind == "buckets" else None
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
    model = nn.ModuleDict({"words": nn.Embedding(words, width), "body": nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), "head": nn.Linear(width, words, bias=False)}).to(DEVICE)
    optimizer, means = habits.make(torch, model.parameters()), copies(torch, model, habits.mean)
    yield f"{layers} layers of {width}, {words} words, {rows} rows of {most}, lengths {kind}, {'causal' if causal else 'both ways'}"

    def make(batch):
        length = dice.choice(lengths) if lengths else dice.randrange(most // 4, most + 1)
        return torch.randint(0, words, (batch, length), device=DEVICE), torch.randint(0, words, (batch, length), device=DEVICE)

    def loss_of(x, y):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=DEVICE) if causal else None
        return F.cross_entropy(model["head"](model["body"](model["words"](x), mask=mask, is_causal=causal)).float().flatten(0, 1), y.flatten())

    step = 0
    while True:
        yield habits.learn(torch, model, optimizer, means, loss_of, make, habits.batch(step, rows))
        step += 1


def caches(torch, dice):
    import torch_later
    torch_later.DEVICE = DEVICE

    class Reader(torch_later.Decoder):
        layers, heads, part, vocab = dice.randrange(12, 33), dice.choice((16, 24, 32)), dice.choice((64, 128)), dice.choice((32000, 64000))
        groups = dice.choice((4, 8))
        inner = heads * part * dice.choice((2, 3, 4))

    least, most, rows, goes_on = dice.randrange(50, 500), dice.randrange(600, 2500), dice.randrange(4, 33), dice.choice((16, 32, 64, 128))
    together = dice.choice((8, 16))
    model = Reader(torch)
    yield f"{rows} texts of {least} to {most}, {goes_on} words more, {model.layers} layers of {model.width}"
    with torch.no_grad():
        while True:
            kept = [None] * model.layers
            scores = model.read(torch.randint(0, model.vocab, (dice.randrange(max(1, rows // 2), rows + 1), dice.randrange(least, most)), device=DEVICE), kept)
            yield scores.amax()
            for _ in range(goes_on // together):
                for _ in range(together):
                    scores = model.read(scores.argmax(-1, keepdim=True), kept)
                yield scores.amax()


def rivals(torch, dice):
    nn, F, habits = torch.nn, torch.nn.functional, Habits(dice)
    points, wide, deep, batch = dice.choice((64, 128, 256)), dice.choice((32, 48, 64)), dice.choice((4, 5)), dice.randrange(32, 129)
    batch = max(4, batch * 64 // points)
    least = points >> deep
    up, down = [], []
    for i in range(deep):
        a, b = wide << min(deep - i, 4), wide << min(deep - i - 1, 4)
        up += [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]
        down = [nn.Conv2d(b, a, 4, 2, 1, bias=False), nn.BatchNorm2d(a), nn.LeakyReLU(0.2, True)] + down
    first = wide << min(deep, 4)
    makes = nn.Sequential(nn.Linear(128, first * least * least), nn.Unflatten(1, (first, least, least)), *up, nn.Conv2d(wide, 3, 3, 1, 1), nn.Tanh()).to(DEVICE)
    judges = nn.Sequential(nn.Conv2d(3, wide, 3, 1, 1), *down, nn.Flatten(), nn.Linear(first * least * least, 1)).to(DEVICE)
    often, o1, o2 = dice.choice((1, 1, 2, 5)), habits.make(torch, makes.parameters()), habits.make(torch, judges.parameters())
    yield f"{batch} pictures of {points}, {deep} halvings from {wide}, {often} to 1"
    step = 0
    while True:
        with habits.autocast(torch):
            made = makes(torch.randn(batch, 128, device=DEVICE))
        if step % (often + 1) < often:
            true = torch.randn(batch, 3, points, points, device=DEVICE)
            with habits.autocast(torch):
                loss = F.softplus(-judges(true)).mean() + F.softplus(judges(made.detach())).mean()
            loss.backward()
            o2.step()
            o2.zero_grad(set_to_none=habits.to_none)
        else:
            with habits.autocast(torch):
                loss = F.softplus(-judges(made)).mean()
            loss.backward()
            o1.step()
            o1.zero_grad(set_to_none=habits.to_none)
            o2.zero_grad(set_to_none=habits.to_none)
        step += 1
        yield loss.detach()


FAMILIES = (pictures, pictures, turns, turns, turns, teacher, texts, texts, caches, rivals)


def drawn(seed):
    """The family's name, and its generator: what it first yields is what was drawn, in words."""
    dice = random.Random(f"drawn {seed}")
    family = dice.choice(FAMILIES)
    return family.__name__, lambda torch: family(torch, dice)


def drawn_steps(seed):
    def steps(torch):
        torch.manual_seed(0)
        loop = drawn(seed)[1](torch)
        next(loop)
        yield from loop
    return steps
