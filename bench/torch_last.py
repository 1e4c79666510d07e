"""Training and inference loops written when the pool waited for old mappings and seats grew last, and before that code had run on a card: nothing was changed for them. As in torch_models.py each is a
generator, one step each; bench/torch_streams.py measures them.

They are bound by the card, not by Python or the workers, and hold some GiB, so that a hundredth can be seen.
"""
import random

DEVICE = "cuda"


def encoder(torch, layers, width, heads, vocab, length):
    """A transformer that reads both ways; bfloat16 comes by autocast."""
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out, self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, 2))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
            self.blocks, self.last = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)

        def forward(self, text):
            x = self.words(text) + self.places.weight[:text.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.last(x)

    return Net()


def ranker_steps(torch):
    """Two models by turns: one of 12 layers turns questions and passages into vectors and is taught by another of 8 layers, which reads both together and is trained in the next step; passages of
    two lengths."""
    nn, F = torch.nn, torch.nn.functional
    vocab, questions, many = 30000, 48, 4
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    vectors = encoder(torch, 12, 768, 12, vocab, 256).to(DEVICE)
    judge = nn.ModuleList((encoder(torch, 8, 1024, 16, vocab, 256), nn.Linear(1024, 1))).to(DEVICE)
    o1, o2 = torch.optim.AdamW(vectors.parameters(), 2e-5), torch.optim.AdamW(judge.parameters(), 1e-5)
    dice = random.Random(137)

    def judged(both):
        return judge[1](judge[0](both)[:, 0]).float().view(questions, many)

    while True:
        question = torch.randint(0, vocab, (questions, 32), device=DEVICE)
        passage = torch.randint(0, vocab, (questions * many, dice.choice((160, 224))), device=DEVICE)
        both = torch.cat((question.repeat_interleave(many, 0), passage), 1)
        with torch.autocast(DEVICE, torch.bfloat16):
            with torch.no_grad():
                said = judged(both).log_softmax(1)
            q, p = vectors(question)[:, 0], vectors(passage)[:, 0].view(questions, many, -1)
            scores = (q[:, None] * p).sum(2).float()
        loss = F.kl_div(scores.log_softmax(1), said, reduction="batchmean", log_target=True)
        loss.backward()
        o1.step()
        o1.zero_grad(set_to_none=True)
        del said, q, p, scores
        yield loss.detach()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(judged(both), torch.zeros(questions, dtype=torch.long, device=DEVICE))
        loss.backward()
        nn.utils.clip_grad_norm_(judge.parameters(), 1.0)
        o2.step()
        o2.zero_grad(set_to_none=True)
        yield loss.detach()


def latents_steps(torch):
    """Two models by turns: an autoencoder of pictures of 192 x 192, and a network that takes noise out of what the autoencoder makes of them; every tenth turn some are decoded."""
    nn, F = torch.nn, torch.nn.functional

    class Part(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.n1, self.c1, self.n2, self.c2 = nn.GroupNorm(32, a), nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(32, b), nn.Conv2d(b, b, 3, 1, 1)
            self.past = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

        def forward(self, x):
            return self.past(x) + self.c2(F.silu(self.n2(self.c1(F.silu(self.n1(x))))))

    def down(a):
        return nn.Conv2d(a, a, 3, 2, 1)

    def up(a):
        return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(a, a, 3, 1, 1))

    class Noise(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.a, self.b, self.c = nn.Conv2d(4, 320, 3, 1, 1), Part(320, 320), Part(320, 640), Part(640, 960)
            self.d1, self.d2, self.middle, self.u1, self.u2 = down(320), down(640), Part(960, 960), up(960), up(640)
            self.e, self.f, self.last = Part(1600, 640), Part(960, 320), nn.Conv2d(320, 4, 3, 1, 1)

        def forward(self, x):
            a = self.a(self.first(x))
            b = self.b(self.d1(a))
            c = self.middle(self.c(self.d2(b)))
            b = self.e(torch.cat((b, self.u1(c)), 1))
            return self.last(self.f(torch.cat((a, self.u2(b)), 1)))

    torch.manual_seed(0)
    code = nn.Sequential(nn.Conv2d(3, 96, 3, 1, 1), Part(96, 96), down(96), Part(96, 192), down(192), Part(192, 384), nn.Conv2d(384, 4, 3, 1, 1))
    pictures = nn.Sequential(nn.Conv2d(4, 384, 3, 1, 1), Part(384, 384), up(384), Part(384, 192), up(192), Part(192, 96), nn.Conv2d(96, 3, 3, 1, 1))
    code, pictures, noise = (m.to(DEVICE, memory_format=torch.channels_last) for m in (code, pictures, Noise()))
    o1 = torch.optim.AdamW([*code.parameters(), *pictures.parameters()], 1e-4)
    o2 = torch.optim.AdamW(noise.parameters(), 1e-4)
    for i in range(1 << 30):
        x = torch.rand(20, 3, 192, 192, device=DEVICE).to(memory_format=torch.channels_last)
        with torch.autocast(DEVICE, torch.bfloat16):
            z = code(x)
            loss = F.mse_loss(pictures(z).float(), x) + 1e-6 * z.float().square().mean()
        loss.backward()
        o1.step()
        o1.zero_grad(set_to_none=True)
        del x, z
        yield loss.detach()
        x = torch.rand(36, 3, 192, 192, device=DEVICE).to(memory_format=torch.channels_last)
        with torch.autocast(DEVICE, torch.bfloat16):
            with torch.no_grad():
                z = code(x)
            wrong = torch.randn_like(z)
            loss = F.mse_loss(noise(z + wrong).float(), wrong.float())
        loss.backward()
        o2.step()
        o2.zero_grad(set_to_none=True)
        if i % 10 == 9:
            with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
                loss = loss + 0 * pictures(z - noise(z)).float().mean()
        del x, z, wrong
        yield loss.detach()


def proteins_steps(torch):
    """torch.compile: proteins of 512 parts, some of them hidden, are read by 20 layers of width 1024, compiled layer by layer; bfloat16 by autocast, gradients of two batches, clipped, fused AdamW."""
    F, kinds, batch = torch.nn.functional, 33, 20
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = encoder(torch, 20, 1024, 16, kinds, 512).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-4, fused=True)
    for block in model.blocks:
        block.compile()
    while True:
        for _ in range(2):
            text = torch.randint(0, kinds - 1, (batch, 512), device=DEVICE)
            hidden = torch.rand(batch, 512, device=DEVICE) < 0.15
            with torch.autocast(DEVICE, torch.bfloat16):
                scores = F.linear(model(text.masked_fill(hidden, kinds - 1)), model.words.weight)
            each = F.cross_entropy(scores.float().flatten(0, 1), text.flatten(), reduction="none")
            loss = (each * hidden.flatten()).sum() / (0.15 * batch * 512) / 2
            loss.backward()
            del text, hidden, scores, each
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()


def sounds_steps(torch):
    """Side streams and DataLoader workers: sounds of ten seconds are cut by the workers; they come, and are made pictures of tones, on one side stream two batches ahead, what they are on another;
    torchvision's ConvNeXt-Tiny learns what they are, and what it thought leaves on a third."""
    F = torch.nn.functional
    from torchvision.models import convnext_tiny

    class Sounds(torch.utils.data.Dataset):
        stored = torch.randint(-20000, 20000, (8, 200000), dtype=torch.int16, generator=torch.Generator().manual_seed(8))

        def __len__(self):
            return 1 << 20

        def __getitem__(self, i):
            from_ = random.Random(i).randrange(36000)
            return self.stored[i % 8, from_:from_ + 163520], i % 527

    torch.manual_seed(0)
    model = convnext_tiny(num_classes=527).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
    loader = iter(torch.utils.data.DataLoader(Sounds(), 96, num_workers=4, pin_memory=True, persistent_workers=True))
    waves, names, results = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
    window, tones = torch.hann_window(1024, device=DEVICE), torch.rand(128, 513, device=DEVICE) / 513

    def fetch():
        x, y = next(loader)
        with torch.cuda.stream(waves):
            x = torch.stft(x.to(DEVICE, non_blocking=True).float() / 32768, 1024, 320, window=window, return_complex=True).abs().square()
            x = torch.matmul(tones, x).clamp_(1e-10).log_()
            x = x[:, None].expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        with torch.cuda.stream(names):
            y = y.to(DEVICE, non_blocking=True)
        return x, y

    for stream in (waves, names):
        stream.wait_stream(torch.cuda.current_stream())
    ahead = [fetch(), fetch()]
    while True:
        main = torch.cuda.current_stream()
        x, y = ahead.pop(0)
        for stream, tensor in ((waves, x), (names, y)):
            main.wait_stream(stream)
            tensor.record_stream(main)
        ahead.append(fetch())
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(x)
            loss = F.cross_entropy(scores.float(), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        thought = scores.detach()
        results.wait_stream(main)
        with torch.cuda.stream(results):
            thought.float().topk(5, 1).indices.to("cpu", non_blocking=True)
        thought.record_stream(results)
        del x, y, scores, thought, tensor
        yield loss.detach()


def letters_steps(torch):
    """Inference with growing sequences: sixty-four letters of 400 to 1,000 words are read at once by a decoder of 16 layers with eight keys for its 32 heads, and each is answered with 64
    words, the likeliest one by one. A step is the reading, or sixteen words."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch_later import Decoder

    class Small(Decoder):
        layers, heads, groups, part, inner, vocab = 16, 32, 8, 64, 8192, 128256

    torch.manual_seed(0)
    model, dice = Small(torch), random.Random(137)
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        while True:
            kept = [None] * model.layers
            scores = model.read(torch.randint(0, model.vocab, (64, dice.randrange(400, 1001)), device=DEVICE), kept)
            yield scores.amax()
            for _ in range(4):
                for _ in range(16):
                    scores = model.read(scores.argmax(-1, keepdim=True), kept)
                yield scores.amax()


def generate_steps(torch):
    """Inference with growing sequences, in the transformers library's own code: a Llama of 16 layers (1.2 thousand million weights) writes 48 words to each of 32 questions of 600 to
    1,400 words, drawn one by one. A step is a batch of questions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                         max_position_embeddings=8192, tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model, dice = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval(), random.Random(139)
    with torch.no_grad():
        while True:
            asked = torch.randint(3, config.vocab_size, (32, dice.randrange(600, 1401)), device=DEVICE)
            told = model.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=48, min_new_tokens=48, do_sample=True)
            yield told[:, -1].float().mean()


# Part: the loop, steps before the first timed one, steps a turn, turns.
LAST = {"ranker": (ranker_steps, 16, 8, 60), "latents": (latents_steps, 20, 10, 60), "proteins": (proteins_steps, 12, 8, 60), "sounds": (sounds_steps, 16, 8, 60),
        "letters": (letters_steps, 15, 10, 60), "generate": (generate_steps, 6, 2, 60)}
