/* random_graph.c: see random_graph.h. */
#include "random_draws.h"

#include "base/philox.h"
#include "graph/passes/chunk.h"

uint32_t draw_word(random_state *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)((z ^ z >> 31) >> 16);
}

uint32_t draw_below(random_state *r, uint32_t n)
{
    return draw_word(r) % n;
}

enum { CLASSES = 11, NUMBERS = 5 }; /* whole numbers are labels, and rows of the smallest table */

static mf_shape input_shape(uint32_t number, int64_t batch)
{
    static const int64_t shapes[][4] = {{1},       {8},       {3},       {4, 1}, {1, 4}, {2, 3},    {4, 4},
                                        {4, 4, 2}, {5, 3, 1}, {1, 1, 8}, {16},   {2, 8}, {3, 1, 5}, {6, 2}};
    const int64_t *from = shapes[number % (sizeof shapes / sizeof *shapes)];
    mf_shape s = {.rank = 1, .dim = {batch}};
    for (uint32_t i = 0; i < 4 && from[i]; i++)
        s.dim[s.rank++] = from[i];
    return s;
}

/* ---- losses and the step ---- */

/* A result with a row a sample. */
static uint32_t result(drawing *d, uint32_t word)
{
    for (uint32_t i = 0; i < d->pool_count; i++) {
        uint32_t x = d->pool[d->pool_count - 1 - (word + i) % d->pool_count];
        mf_shape s = draw_shape_of(d, x);
        if (s.rank >= 1 && s.dim[0] == d->batch)
            return mf_g_view(&d->b, x, draw_shape2(d->batch, (int64_t)mf_shape_count(&s) / d->batch));
    }
    return MF_NONE;
}

/* Returns what the loss looks at. */
static uint32_t append_loss(drawing *d, uint32_t pred, uint32_t word, uint32_t loss)
{
    static const mf_loss functions[] = {MF_LOSS_MSE,   MF_LOSS_MAE,        MF_LOSS_HUBER,      MF_LOSS_LOG_COSH,
                                        MF_LOSS_HINGE, MF_LOSS_BCE_LOGITS, MF_LOSS_CCE_LOGITS, MF_LOSS_COSINE};
    mf_attr attr = {.loss = {.function = functions[word % 8], .weight = 0.7, .delta = 0.8, .axis = 1}};
    if (!d->s->wide && word / 16 % 3 == 0) /* as a model in 16 bits ends */
        pred = mf_g_cast(&d->b, mf_g_cast(&d->b, pred, word / 48 % 2 ? MF_F16 : MF_BF16), MF_F32);
    uint32_t target = draw_feed(d, "target", MF_F32, draw_shape_of(d, pred), 1);
    uint32_t weight = word / 8 % 2 ? draw_feed(d, "weight", MF_F32, draw_shape1(d->batch), 2) : MF_NONE;
    mf_g_op_in_place(&d->b, MF_OP_LOSS, &attr, 4, (uint32_t[]){pred, target, weight, loss}, 1, &loss);
    return pred;
}

/* Two numbers of state that a metric adds to. */
static void append_metric(drawing *d, uint32_t pred, uint32_t word)
{
    static const mf_metric functions[] = {MF_METRIC_METRIC_MAE, MF_METRIC_METRIC_MSE, MF_METRIC_BINARY_ACCURACY};
    mf_attr attr = {.metric = {.function = functions[word % 3], .threshold = 0.5}};
    uint32_t state = draw_variable(d, MF_VAR_METRIC, draw_shape1(2), 0);
    uint32_t target = draw_feed(d, "target", MF_F32, draw_shape_of(d, pred), 1);
    mf_g_op_in_place(&d->b, MF_OP_METRIC, &attr, 4, (uint32_t[]){pred, target, MF_NONE, state}, 1, &state);
}

static void append_head(drawing *d, uint32_t x, uint32_t loss, uint32_t chunks)
{
    mf_graph *g = d->b.graph;
    int64_t width = draw_shape_of(d, x).dim[1], each;
    uint32_t kernel = draw_weights(d, draw_shape2(width, CLASSES)), bias = draw_weights(d, draw_shape1(CLASSES));
    if (!d->s->wide && d->s->target[0] / 64 % 2) { /* as a model in 16 bits ends */
        x = mf_g_cast(&d->b, x, MF_BF16);
        kernel = mf_g_cast(&d->b, kernel, MF_BF16);
        bias = d->s->target[0] / 128 % 2 ? mf_g_cast(&d->b, bias, MF_BF16) : MF_NONE;
    }
    uint32_t logits = mf_g_cast(&d->b, mf_g_matmul(&d->b, x, kernel, bias, false, false, 1), MF_F32);
    uint32_t target = draw_feed(d, "label", MF_I32, draw_shape1(d->batch), 1);
    mf_attr attr = {.loss = {.function = MF_LOSS_SCCE_LOGITS, .weight = 1, .axis = 1}};
    mf_head head;
    const char *why;
    if (!mf_build_ok(&d->b) || !mf_head_find(&d->b, logits, logits, &head, &why))
        return;
    g->logits_bytes = (uint64_t)(d->batch * CLASSES) * 4;
    g->logits_rows = d->batch;
    head.chunks = chunks;
    uint32_t count = mf_head_chunks(d->batch, chunks, &each);
    if (chunks < 2 || count < 2) {
        mf_g_op_in_place(&d->b, MF_OP_LOSS, &attr, 4, (uint32_t[]){logits, target, MF_NONE, loss}, 1, &loss);
        return;
    }
    g->chunks = count;
    head.loss = attr;
    head.loss.loss.rows_per_sample = 1;
    head.target = target;
    head.weights = MF_NONE;
    head.loss_tensor = loss;
    mf_head_add(&d->b, &head);
}

static void append_step(drawing *d, uint32_t chunks)
{
    mf_graph *g = d->b.graph;
    const subject *s = d->s;
    uint32_t y[3] = {result(d, s->target[0]), result(d, s->target[1]), result(d, s->target[2])};
    g->outputs = MF_NEW_ARRAY(&g->arena, uint32_t, 3);
    g->output_count = 1 + s->target[2] % 3;
    for (uint32_t i = 0; i < g->output_count && g->outputs; i++)
        g->outputs[i] = y[i];
    d->b.plain = s->plain;
    if (s->fuse)
        mf_g_fuse(&d->b, 3, y);
    d->b.layer = 0;
    d->b.phase = MF_LOSS_PHASE;
    mf_variable v = {.name = "loss",
                     .path = "",
                     .role = MF_VAR_LOSS,
                     .kind = MEMFIT_KIND_OTHER,
                     .dtype = MF_F32,
                     .parameter = MF_NONE};
    g->chunks = 1;
    g->loss_variable = mf_g_variable(&d->b, &v);
    if (s->mode == MF_MODE_PREDICT)
        return;
    uint32_t loss = mf_g_use(&d->b, g->loss_variable);
    d->b.when = MF_FIRST_PIECE;
    mf_g_clear(&d->b, loss, 0);
    d->b.when = MF_ALWAYS;
    for (uint32_t i = 0; i < g->output_count; i++) {
        if (i == 0 && s->head)
            append_head(d, y[0], loss, chunks);
        else
            y[i] = append_loss(d, y[i], s->target[i] / 64, loss);
        if (s->target[i] / 1024 % 4 == 0)
            append_metric(d, y[i], s->target[i] / 4096);
    }
    mf_optimizer_variables(&d->b, &s->optimizer);
    if (g->mode == MF_MODE_TRAIN)
        mf_optimizer_step(&d->b, &s->optimizer);
    else
        mf_heads_append(&d->b, NULL);
    if (s->mask)
        mf_g_mask(&d->b, 1);
}

memfit_status subject_graph(const subject *s, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                            uint32_t chunks, mf_graph **graph, memfit_error *err)
{
    drawing d = {.s = s, .batch = batch};
    mf_build_begin(&d.b, host, err);
    mf_graph *g = d.b.graph;
    if (mf_build_ok(&d.b)) {
        g->mode = mode;
        g->batch = batch;
        g->accumulate = accumulate && mode == MF_MODE_TRAIN;
        g->uses_batch_norm = !s->samplewise;
    }
    d.b.layer = mf_build_layer(&d.b, "drawn", "Drawn");
    d.b.phase = MF_FORWARD;
    for (uint32_t i = 0; i < s->input_count; i++)
        draw_add(&d, draw_feed(&d, "x", MF_F32, input_shape(s->inputs[i], batch), 0));
    for (uint32_t i = 0; i < s->draw_count && mf_build_ok(&d.b); i++)
        if (!s->draws[i].left_out)
            draw_add(&d, random_rules[s->draws[i].kind].rule(&d, s->draws[i].word));
    if (mf_build_ok(&d.b))
        append_step(&d, chunks);
    return mf_build_end(&d.b, graph);
}

/* ---- drawing a subject ------------------------------------------------------------------------------------ */

static void draw_optimizer(subject *s, random_state *r, bool reordered)
{
    /* An update that divides by the gradient's size makes a last bit of the gradient a large difference. */
    mf_optimizer_defaults(reordered ? MF_OPTIMIZER_SGD : (mf_optimizer)draw_below(r, MF_OPTIMIZER_COUNT),
                          &s->optimizer);
    if (reordered)
        s->optimizer.update.momentum = 0.5;
    uint32_t clip = draw_below(r, 6);
    s->optimizer.clip_norm = clip == 0 ? 0.5 : 0;
    s->optimizer.global_clip_norm = clip == 1 ? 0.5 : 0;
    s->optimizer.clip_value = clip == 2 ? 0.1 : 0;
    s->optimizer.ema = draw_below(r, 6) == 0;
    s->optimizer.loss_scale = draw_below(r, 8) == 0;
}

void subject_draw(subject *s, uint64_t seed, bool reordered)
{
    random_state r = {seed * 0x2545f4914f6cdd1dull + 1};
    *s = (subject){.seed = seed};
    s->samplewise = reordered || draw_below(&r, 2);
    s->wide = reordered;
    s->mode = reordered ? MF_MODE_TRAIN : draw_below(&r, 4) ? MF_MODE_TRAIN : MF_MODE_PREDICT;
    s->head = s->mode == MF_MODE_TRAIN && draw_below(&r, 4) == 0;
    s->batch = s->head && reordered ? 33 + draw_below(&r, 8) : 1 + draw_below(&r, 4);
    if (reordered && s->batch < 2)
        s->batch = 2;
    s->fuse = draw_below(&r, 2);
    s->mask = draw_below(&r, 2);
    s->plain = draw_below(&r, 4) == 0;
    s->regularized = draw_below(&r, 4) == 0;
    draw_optimizer(s, &r, reordered);
    s->input_count = 1 + draw_below(&r, MOST_INPUTS);
    for (uint32_t i = 0; i < s->input_count; i++)
        s->inputs[i] = draw_word(&r);
    for (uint32_t i = 0; i < 3; i++)
        s->target[i] = draw_word(&r);
    uint32_t all = 0;
    for (uint32_t i = 0; i < random_rule_count; i++)
        all += random_rules[i].share;
    s->draw_count = 1 + draw_below(&r, MOST_DRAWS);
    for (uint32_t i = 0; i < s->draw_count; i++) {
        uint32_t at = draw_below(&r, all), kind = 0;
        while (at >= random_rules[kind].share)
            at -= random_rules[kind++].share;
        s->draws[i].kind = kind;
        for (uint32_t k = 0; k < DRAW_WORDS; k++)
            s->draws[i].word[k] = draw_word(&r) & 0xffffff;
    }
}

/* ---- numbers ---- */

static double number(uint64_t seed, uint32_t a, uint64_t b, uint64_t i)
{
    uint32_t words[4];
    mf_philox(seed, a, b, 0, i, words);
    return (words[0] >> 8) * 0x1p-24;
}

double subject_feed_value(const subject *s, const mf_graph *g, uint32_t index, uint64_t sample, uint64_t i)
{
    double v = number(s->seed, index, sample, i);
    switch (g->tensors[g->feeds[index].tensor].dtype) {
    case MF_U8:
        return v < 0.7;
    case MF_I32:
        return (double)(int)(v * NUMBERS);
    default:
        return g->feeds[index].role == 2 ? 0.5 + v : (double)(float)(2 * v - 1);
    }
}

double subject_variable_value(const subject *s, const mf_graph *g, uint32_t index, uint64_t i)
{
    const mf_variable *v = &g->variables[index];
    if (v->role == MF_VAR_PARAMETER)
        return (double)(float)(1.4 * number(s->seed + 1, index, 0, i) - 0.7);
    if (v->role == MF_VAR_STATISTIC)
        return (double)(float)(0.5 + number(s->seed + 1, index, 0, i));
    return v->initial;
}

void subject_print(const subject *s, const mf_graph *g)
{
    fprintf(stderr, "seed %llu: batch %lld, %s, %s%s%s, %s\n", (unsigned long long)s->seed, (long long)s->batch,
            s->mode == MF_MODE_TRAIN ? "training" : "prediction", s->samplewise ? "samples apart" : "samples mixed",
            s->wide ? ", float64" : "", s->head ? ", head" : "", mf_optimizer_name(s->optimizer.update.optimizer));
    for (uint32_t i = 0; i < s->draw_count; i++)
        if (!s->draws[i].left_out)
            fprintf(stderr, "  draw %s\n", random_rules[s->draws[i].kind].name);
    for (uint32_t i = 0; g && i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        fprintf(stderr, "  %3u %-16s", i, mf_kind_name(op->kind));
        for (uint32_t k = 0; k < op->in_count + op->out_count; k++) {
            uint32_t t = k < op->in_count ? op->in[k] : op->out[k - op->in_count];
            char text[128];
            fprintf(stderr, "%s", k == op->in_count ? " ->" : "");
            if (t == MF_NONE)
                fprintf(stderr, " -");
            else
                fprintf(stderr, " %u:%s", g->tensors[t].storage,
                        mf_shape_format(&g->tensors[t].shape, text, sizeof text));
        }
        fprintf(stderr, "\n");
    }
}
