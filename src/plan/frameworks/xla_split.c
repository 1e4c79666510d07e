/*
 * xla_split.c: products whose long sums XLA cuts into parts, each of which is a product of its own; the parts are added
 * afterwards. It does so before any library is asked, so cuBLAS's products are cut as its own are. Into how many parts is
 * decided by XLA's estimate of the time (xla/backends/gpu/transforms/splitk_rewriter.cc, cards from Hopper on); all of the
 * 13 products that were looked at in compiled programs were cut as it says.
 *
 *   parts     float32, each as large as the result; who reads the result adds them up
 *   padding   where the sum is no multiple of parts and 16 bytes, both operands are copied with zeros behind
 */
#include "plan/frameworks/xla_step.h"

typedef struct product {
    double batch, rows, columns, sums;
    double bits[2]; /* of the operands, before they were cast */
    double out_bits;
} product;

uint64_t mf_xla_sum_length(const mf_graph *g, const mf_op *op)
{
    const mf_shape *a = &g->tensors[op->in[0]].shape;
    return (uint64_t)(op->attr.matmul.trans_a ? a->dim[a->rank - 2] : a->dim[a->rank - 1]);
}

static double operand_bits(const mf_graph *g, uint32_t t)
{
    uint32_t maker = g->tensors[t].producer;
    if (maker != MF_NONE && g->ops[maker].kind == MF_OP_CAST)
        t = g->ops[maker].in[0];
    return 8.0 * (double)mf_dtype_bytes(g->tensors[t].dtype);
}

static product measure(const mf_graph *g, const mf_op *op)
{
    const mf_shape *b = &g->tensors[op->in[1]].shape, *c = &g->tensors[op->out[0]].shape;
    double columns = (double)c->dim[c->rank - 1], all = (double)mf_shape_count(c);
    double rows = b->rank == 2 ? all / columns : (double)c->dim[c->rank - 2];
    return (product){.batch = all / (rows * columns),
                     .rows = rows,
                     .columns = columns,
                     .sums = (double)mf_xla_sum_length(g, op),
                     .bits = {operand_bits(g, op->in[0]), operand_bits(g, op->in[1])},
                     .out_bits = 8.0 * (double)mf_dtype_bytes(g->tensors[op->out[0]].dtype)};
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double ceiling(double a, double b)
{
    double n = (double)(uint64_t)(a / b);
    return n * b < a ? n + 1 : n;
}

/* An estimate in XLA's unit. Weights and the tile are XLA's for Hopper; of the card its processors count: an H200's. */
static double cost(const product *p, double parts)
{
    const double tile = 128, processors = 132, of_byte = 0.194136, of_added_byte = 193.1384, of_adding = 4.36e7;
    double rows = least(p->rows, tile), columns = least(p->columns, tile);
    double tiles = p->batch * parts * ceiling(p->rows, tile) * ceiling(p->columns, tile);
    double waves = tiles * rows * columns / (processors * tile * tile);
    double results = p->rows * p->columns * p->batch;
    double compute = 200 * rows * columns * ceiling(p->sums, parts) * (waves > 1 ? waves : 1);
    double bytes = p->batch * p->sums * (p->rows * p->bits[0] + p->columns * p->bits[1]) / 8 +
                   results * parts * (parts > 1 ? 4 : p->out_bits / 8);
    double time = compute > bytes * of_byte ? compute : bytes * of_byte;
    return parts > 1 ? time + of_adding + results * (parts * 4 + p->out_bits / 8) * of_added_byte : time;
}

uint32_t mf_xla_parts(const mf_graph *g, const mf_op *op)
{
    enum { MOST = 2048 };
    if (op->kind != MF_OP_MATMUL)
        return 1;
    product p = measure(g, op);
    uint32_t best = 1;
    double least_cost = cost(&p, 1);
    for (uint32_t parts = 2; parts <= MOST; parts *= 2) {
        double c = cost(&p, parts);
        if (c < least_cost) {
            least_cost = c;
            best = parts;
        }
    }
    return best;
}

uint64_t mf_xla_padding(const mf_graph *g, const mf_op *op, uint32_t parts)
{
    if (parts == 1)
        return 0;
    product p = measure(g, op);
    uint64_t sums = (uint64_t)p.sums, of = parts * (uint64_t)(128 / least(p.bits[0], p.bits[1]));
    return (of - sums % of) % of;
}

uint64_t mf_xla_parts_bytes(const mf_xla_step *s, uint32_t at)
{
    return mf_shape_count(&s->graph->tensors[s->graph->ops[at].out[0]].shape) * s->parts[at] * 4;
}

/* As many as a warp are added up by a kernel of their own; fewer by whoever reads the sum, forward and again in backward
 * where reading them again takes no longer than another kernel's launch: 8.3 MB on an H200, not 9.8. */
enum { OWN_KERNEL = 32, READ_AGAIN = 9000000 };

bool mf_xla_keeps_parts(const mf_xla_step *s, uint32_t at)
{
    const mf_graph *g = s->graph;
    if (s->parts[at] == 1 || s->parts[at] >= OWN_KERNEL)
        return false;
    uint32_t t = g->ops[at].out[0];
    bool updated = s->readers[t] == 1 && g->ops[s->reader[t]].kind == MF_OP_UPDATE;
    return updated || (at <= s->turn && !s->heavy_reader[t] && mf_xla_parts_bytes(s, at) < READ_AGAIN);
}

/* Bytes of the operands of a product that nobody needs after it. */
static uint64_t dying_operands(const mf_xla_step *s, uint32_t at)
{
    const mf_graph *g = s->graph;
    const mf_op *op = &g->ops[at];
    uint64_t n = 0;
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t storage = g->tensors[op->in[k]].storage;
        if (s->last[storage] == at && g->storages[storage].variable == MF_NONE)
            n += mf_xla_bytes(g, op->in[k]);
    }
    return n;
}

uint64_t mf_xla_split_bytes(const mf_xla_step *s, uint32_t at, uint64_t blas_bytes)
{
    const mf_graph *g = s->graph;
    const mf_op *op = &g->ops[at];
    if (s->parts[at] == 1)
        return 0;
    uint64_t padding = mf_xla_padding(g, op, s->parts[at]), sums = mf_xla_sum_length(g, op);
    uint64_t parts = mf_xla_parts_bytes(s, at), n = 0;
    if (padding) {
        uint64_t gone = dying_operands(s, at), running = parts + mf_xla_bytes(g, op->out[0]) + blas_bytes;
        uint64_t padded = (mf_xla_bytes(g, op->in[0]) + mf_xla_bytes(g, op->in[1])) / sums * (sums + padding);
        n = padded - (gone < running ? gone : running);
    }
    return mf_xla_keeps_parts(s, at) ? n : n + parts;
}
