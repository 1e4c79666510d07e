/* frameworks.c: from the parts to a peak with a band. See frameworks.h. */
#include "plan/frameworks/frameworks.h"

#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"
#include "plan/frameworks/eager.h"
#include "plan/frameworks/graph_mode.h"
#include "plan/frameworks/xla.h"

#include <string.h>
#include <strings.h>

#define MIB ((uint64_t)1 << 20)

/*
 * What a runtime takes of a card beside its tensors, as a part of what the card's row says a plain program takes, and
 * how far off each part of a prediction may be. From bench/frameworks on an H200, where PyTorch's process had 742 to 762
 * MiB beside its pool (630 where no product runs) and JAX's 620 to 650 (570). TensorFlow's GPU build was never measured:
 * its row is wide.
 */
typedef struct runtime_row {
    const char *name, *title, *version, *basis;
    double fixed_share;                /* of the card's fixed cost */
    double fixed_error;                /* of the result, beside the table's own margin */
    double pool_below, pool_above;     /* of the pool, without weights and their state */
    uint64_t below_bytes, above_bytes; /* and these, for workspaces that no table has */
    double holes_below, holes_above; /* of what the pool holds beside live bytes: which hole a request finds is chance.
                                      * holes_above at least, to both sides; holes_below with pool_less */
} runtime_row;

static const runtime_row rows[MF_RUNTIME_COUNT] = {
    [MF_RUNTIME_MEMFIT] = {"memfit", "memfit", "memfit", "table", 1, 0, 0, 0, 0, 0, 0, 0},
    [MF_RUNTIME_TENSORFLOW] = {"tensorflow", "TensorFlow", "TensorFlow 2.21, Keras 3.15", "modelled", 1.2, 0.10, 0.15,
                               0.15, 0, 64 * MIB, 0, 0},
    [MF_RUNTIME_TORCH] = {"torch", "PyTorch", "PyTorch 2.11, Keras 3.15", "table", 1.2016, 0, 0.03, 0.03, 0, 60 * MIB,
                          0.1, 0.3},
    [MF_RUNTIME_JAX] = {"jax", "JAX", "JAX 0.11, Keras 3.15", "table", 1.084, 0.04, 0.08, 0.08, 0, 64 * MIB, 0, 0},
};

const char *mf_runtime_name(mf_runtime runtime)
{
    return rows[runtime].name;
}

const char *mf_runtime_title(mf_runtime runtime)
{
    return rows[runtime].title;
}

const char *mf_runtime_version(mf_runtime runtime)
{
    return rows[runtime].version;
}

bool mf_runtime_parse(const char *text, mf_runtime *runtime)
{
    static const struct {
        const char *word;
        mf_runtime runtime;
    } more[] = {{"pytorch", MF_RUNTIME_TORCH}, {"tf", MF_RUNTIME_TENSORFLOW}, {"keras", MF_RUNTIME_TENSORFLOW}};
    for (int i = 0; i < MF_RUNTIME_COUNT; i++)
        if (strcasecmp(text, rows[i].name) == 0) {
            *runtime = (mf_runtime)i;
            return true;
        }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (strcasecmp(text, more[i].word) == 0) {
            *runtime = more[i].runtime;
            return true;
        }
    return false;
}

const char *mf_framework_fits_name(mf_framework_fits fits)
{
    static const char *const words[] = {"no", "tight", "yes"};
    return words[fits];
}

/* cuBLAS's workspace in both programs: 32 MiB on Hopper and later data-centre cards, else 8 and an eighth. */
uint64_t mf_framework_blas_bytes(uint32_t capability)
{
    return capability == 90 || capability == 100 ? 32 * MIB : 8519680;
}

/* Of a recorded program: most of cuDNN's workspaces are known by rules (python/memfit/_trace.py), and what is not is varied
 * (pools.h): this is what is beside that. */
static const runtime_row of_recording = {"torch", "PyTorch", "", "table", 0, 0, 0.025, 0.025, 0, 40 * MIB, 0.1, 0.1};

/* Of a pool that is short of memory: holes and workspaces no longer matter, since unused segments go back and cuDNN takes
 * less where it gets less. Where 14 Keras models began to fail, the least pool was 0.97 to 1.04 of what was left. */
static const runtime_row of_least = {"torch", "PyTorch", "", "table", 0, 0, 0.04, 0.025, 0, 16 * MIB, 0, 0};

/* The same with transposed convolutions: what cuDNN allocates for itself then must be left free, as a pool that has filled the
 * limit gives nothing back for it (DEVICE_ALLOCATION_FAILED). Where two began to fail the least pool was 0.93 and 0.97 of what was
 * left. */
static const runtime_row of_least_transposed = {"torch", "PyTorch", "", "table", 0, 0, 0.04, 0.05, 0, 16 * MIB, 0, 0};

static const runtime_row *row_of(const mf_framework_estimate *x, const mf_framework_place *place)
{
    const runtime_row *least = place->transposed ? &of_least_transposed : &of_least;
    return place->recorded ? &of_recording : x->at_least ? least : &rows[x->runtime];
}

/* Of the activations, by computing things again: no step was seen to save more. */
#define MOST_SAVED 0.5

/* Peak and band from pool and fixed cost. */
static void set_band(mf_framework_estimate *x, const mf_framework_place *place, const runtime_row *row, uint64_t fixed)
{
    x->basis = place->measured && strcmp(row->basis, "table") == 0 ? "measured" : row->basis;
    x->fixed_bytes = fixed;
    double fixed_off = (double)x->fixed_bytes * (row->fixed_error + place->fixed_margin_percent / 100.0);
    double pool = x->pool_bytes > x->weight_bytes ? (double)(x->pool_bytes - x->weight_bytes) : 0;
    x->peak_bytes = x->fixed_bytes + x->pool_bytes;
    double holes = x->pool_bytes > x->live_bytes ? (double)(x->pool_bytes - x->live_bytes) : 0;
    double near = (double)x->pool_less + holes * row->holes_below, usual = holes * row->holes_above;
    double below = pool * row->pool_below + (double)row->below_bytes + fixed_off + (near > usual ? near : usual);
    if (x->least_bytes && x->least_bytes < x->live_bytes && x->least_bytes > x->weight_bytes) {
        double saved = (double)(x->live_bytes - x->least_bytes), half = pool * MOST_SAVED;
        below = (saved < half ? saved + (pool - saved) * row->pool_below : half) + fixed_off;
    }
    x->low_bytes = x->peak_bytes - (uint64_t)(below < (double)x->peak_bytes ? below : (double)x->peak_bytes);
    x->high_bytes =
        x->peak_bytes + x->pool_more +
        (uint64_t)(pool * row->pool_above + (double)row->above_bytes + fixed_off + holes * row->holes_above);
    x->fits = x->high_bytes <= place->limit_bytes ? MF_FRAMEWORK_YES
              : x->low_bytes > place->limit_bytes ? MF_FRAMEWORK_NO
                                                  : MF_FRAMEWORK_TIGHT;
}

/* Of PyTorch's fixed cost: 128 of 1383 MiB on an H200, 18 for cuDNN's; of JAX's: 54 of 1247. Keras's LSTMs and GRUs on
 * PyTorch were seen with 94 to 98 MiB more (a plain torch.nn.LSTM was not). */
enum { BLAS_PART = 11, CONVOLUTION_PART = 77, XLA_BLAS_PART = 23, RECURRENT_PART = 14 };

static void finish(mf_framework_estimate *x, const mf_framework_place *place)
{
    uint64_t fixed = (uint64_t)((double)place->fixed_bytes * rows[x->runtime].fixed_share);
    if (place->no_products && x->runtime != MF_RUNTIME_TENSORFLOW)
        fixed -= fixed / (x->runtime == MF_RUNTIME_JAX ? XLA_BLAS_PART : BLAS_PART);
    if (place->no_convolutions && x->runtime == MF_RUNTIME_TORCH)
        fixed -= fixed / CONVOLUTION_PART;
    if (place->recurrent && x->runtime == MF_RUNTIME_TORCH)
        fixed += fixed / RECURRENT_PART;
    set_band(x, place, row_of(x, place), fixed);
}

/* The largest pool whose upper end is within the limit. */
static uint64_t room_for_pool(const mf_framework_estimate *x, const mf_framework_place *place)
{
    double above = row_of(x, place)->pool_above;
    double beside = (double)x->high_bytes - (double)x->pool_bytes * (1 + above);
    double room = ((double)place->limit_bytes - beside) / (1 + above) - 4096;
    return room > 0 ? (uint64_t)room : 0;
}

/* The lower end of a pool left alone, by the pools of sizes near. Looked for last, and only where it is said: it takes four runs. */
static memfit_status look_near(const mf_tape *tape, const mf_pool_result *alone, const mf_framework_place *place,
                               mf_framework_estimate *x, memfit_error *err)
{
    mf_pool_spread spread;
    if (place->recorded || place->rough)
        return MEMFIT_OK;
    memfit_status status = mf_pool_near(tape, MF_POOL_CACHING, alone, &spread, err);
    if (status == MEMFIT_OK) {
        x->pool_less = spread.middle_bytes - spread.low_bytes;
        finish(x, place);
    }
    return status;
}

/* `training` is a tape of many steps, or empty: what a long training takes more is within the band's upper end, and at a
 * limit it is what must run. */
static memfit_status from_tapes(const mf_tape *tape, const mf_tape *training, uint64_t workspace_bytes,
                                const mf_framework_place *place, mf_framework_estimate *estimate, memfit_error *err)
{
    mf_framework_estimate x = {.runtime = MF_RUNTIME_TORCH, .workspace_bytes = workspace_bytes};
    mf_pool_result pool;
    memfit_status status = mf_pool_run(tape, MF_POOL_CACHING, 0, &pool, err);
    if (status != MEMFIT_OK)
        return status;
    x.live_bytes = pool.live_bytes;
    x.pool_bytes = pool.reserved_bytes;
    mf_tape_at_peak(tape, x.by_kind);
    if (place->recorded) {
        mf_pool_spread spread;
        status = mf_pool_vary(tape, MF_POOL_CACHING, &spread, err);
        if (status != MEMFIT_OK)
            return status;
        x.pool_bytes = spread.middle_bytes;
        x.pool_less = spread.middle_bytes - spread.low_bytes;
        x.pool_more = spread.high_bytes - spread.middle_bytes;
    }
    const mf_tape *longest = training->peak_bytes > tape->peak_bytes ? training : tape;
    if (longest != tape)
        x.pool_more += longest->peak_bytes - tape->peak_bytes;
    if (!place->recorded) /* there the optimizer is the user's own */
        x.weight_bytes = x.by_kind[MEMFIT_KIND_PARAMETERS] + x.by_kind[MEMFIT_KIND_OPTIMIZER];
    finish(&x, place);
    if (x.fits != MF_FRAMEWORK_YES) { /* short of memory, the pool gives unused segments back before it fails */
        mf_framework_estimate alone = x;
        const mf_pool_result left_alone = pool;
        x.at_least = true;
        x.pool_less = x.pool_more = 0;
        finish(&x, place);
        uint64_t room = room_for_pool(&x, place);
        pool.failed = true;
        if (room > longest->peak_bytes)
            status = mf_pool_run(longest, MF_POOL_CACHING, room, &pool, err);
        if (status == MEMFIT_OK && pool.failed && !place->rough)
            status = mf_pool_least(longest, MF_POOL_CACHING, &x.pool_bytes, err);
        else if (status == MEMFIT_OK)
            x.pool_bytes = !pool.failed ? pool.reserved_bytes : room > x.pool_bytes ? room + MIB : x.pool_bytes;
        finish(&x, place);
        if (x.fits == MF_FRAMEWORK_YES && !place->rough) { /* it needs this little, and takes what there is */
            x.high_bytes = alone.high_bytes < place->limit_bytes ? alone.high_bytes : place->limit_bytes;
            if (alone.peak_bytes < x.peak_bytes) { /* which a long training does */
                status = look_near(tape, &left_alone, place, &alone, err);
                x.pool_bytes = alone.pool_bytes;
                x.peak_bytes = alone.peak_bytes;
                x.low_bytes = alone.low_bytes;
            }
        }
    } else {
        status = look_near(tape, &pool, place, &x, err);
    }
    if (status == MEMFIT_OK)
        *estimate = x;
    return status;
}

memfit_status mf_framework_from_tape(const mf_tape *tape, uint64_t workspace_bytes, const mf_framework_place *place,
                                     mf_framework_estimate *estimate, memfit_error *err)
{
    mf_tape none = {0};
    return from_tapes(tape, &none, workspace_bytes, place, estimate, err);
}

static bool has(const mf_graph *graph, mf_op_kind one, mf_op_kind other)
{
    for (uint32_t i = 0; i < graph->op_count; i++)
        if (graph->ops[i].kind == one || graph->ops[i].kind == other)
            return true;
    return false;
}

static bool has_transposed(const mf_graph *graph)
{
    for (uint32_t i = 0; i < graph->op_count; i++)
        if (graph->ops[i].kind == MF_OP_CONV_GRAD_DATA && graph->ops[i].phase == MF_FORWARD)
            return true;
    return false;
}

static memfit_status predict_torch(const memfit_host *host, const mf_graph *graph, const mf_framework_place *place,
                                   mf_framework_estimate *estimate, memfit_error *err)
{
    mf_tape tape, training;
    uint64_t workspace = 0;
    mf_framework_place here = *place;
    here.no_products = !has(graph, MF_OP_MATMUL, MF_OP_MATMUL);
    here.recurrent = has(graph, MF_OP_LSTM, MF_OP_GRU);
    here.no_convolutions = !here.recurrent && !has(graph, MF_OP_CONV, MF_OP_CONV_GRAD_DATA);
    here.transposed = has_transposed(graph);
    mf_tape_init(&tape, host, 512);
    mf_tape_init(&training, host, 512);
    memfit_status status =
        mf_eager_run(host, graph, mf_framework_blas_bytes(place->capability), &tape, &training, &workspace, err);
    if (status == MEMFIT_OK)
        status = from_tapes(&tape, &training, workspace, &here, estimate, err);
    mf_tape_destroy(&training);
    mf_tape_destroy(&tape);
    return status;
}

/* Where a step would take more than four fifths of JAX's pool XLA computes things again in backward: the band reaches down
 * to what it needs then. TensorFlow's XLA looks at the whole card's memory.
 *
 * The program's variables and batch, and one temporary buffer, which holds the products' workspace. The pool is taken
 * at its least, with the batch that was and the one that comes: left to itself, the process shows more (its pool doubles
 * as it grows, and holds what tuning tried), and runs with this. */
static memfit_status predict_xla(const memfit_host *host, mf_runtime runtime, const mf_graph *graph,
                                 const mf_framework_place *place, mf_framework_estimate *estimate, memfit_error *err)
{
    mf_xla_memory m = {.could_do_with_less = true};
    mf_xla_card card = {.blas_bytes = mf_framework_blas_bytes(place->capability),
                        .fused_attention = runtime == MF_RUNTIME_JAX && place->capability >= 80,
                        .library_lstm = runtime == MF_RUNTIME_JAX,
                        .roomy = true};
    mf_framework_estimate x = {.runtime = runtime};
    mf_framework_place here = *place;
    for (int turn = 0; turn < 2 && x.fits != MF_FRAMEWORK_YES && m.could_do_with_less; turn++) {
        memfit_status status = mf_xla_run(host, graph, &card, &m, err);
        if (status != MEMFIT_OK)
            return status;
        x.workspace_bytes = m.workspace_bytes;
        x.weight_bytes = m.variable_bytes;
        x.live_bytes = m.variable_bytes + m.input_bytes + m.temp_bytes;
        x.pool_bytes = mf_round_up(x.live_bytes + 2 * m.input_bytes, 2 * MIB);
        here.no_products = !m.products;
        finish(&x, &here);
        card.roomy = false;
    }
    if (runtime == MF_RUNTIME_JAX && !place->rough) {
        mf_xla_memory least;
        card.recomputes = true;
        memfit_status status = mf_xla_run(host, graph, &card, &least, err);
        if (status != MEMFIT_OK)
            return status;
        x.least_bytes = least.variable_bytes + least.input_bytes + least.temp_bytes;
        finish(&x, &here);
    }
    *estimate = x;
    return MEMFIT_OK;
}

/* TensorFlow on a CPU: its allocator's bytes, and what the process has resident beside them: itself, and the graphs that
 * it makes, mostly of the update of each weight (a line through 29 processes). */
static const runtime_row on_cpu = {"tensorflow", "TensorFlow", "",      "table", 0, 0.12,
                                   0.10,         0.10,         4 * MIB, 8 * MIB, 0, 0};

static uint64_t resident_beside(const mf_graph *graph)
{
    uint64_t weights = 0;
    for (uint32_t v = 0; v < graph->variable_count; v++)
        weights += graph->variables[v].role == MF_VAR_PARAMETER && graph->variables[v].trainable;
    return 549 * MIB + weights * 37 * MIB / 20;
}

static memfit_status predict_on_cpu(const memfit_host *host, const mf_graph *graph, const mf_framework_place *place,
                                    mf_framework_estimate *estimate, memfit_error *err)
{
    mf_tape tape;
    mf_pool_result pool;
    mf_framework_estimate x = {.runtime = MF_RUNTIME_TENSORFLOW};
    mf_tape_init(&tape, host, 256);
    memfit_status status = mf_graph_mode_run(host, graph, &tape, err);
    if (status == MEMFIT_OK)
        status = mf_pool_run(&tape, MF_POOL_ONEDNN, 0, &pool, err);
    if (status == MEMFIT_OK) {
        x.live_bytes = pool.live_bytes;
        x.pool_bytes = pool.live_bytes + pool.small_bytes; /* of its regions only what was ever used is resident */
        mf_tape_at_peak(&tape, x.by_kind);
        set_band(&x, place, &on_cpu, resident_beside(graph));
        *estimate = x;
    }
    mf_tape_destroy(&tape);
    return status;
}

memfit_status mf_framework_predict(const memfit_host *host, mf_runtime runtime, const mf_graph *graph,
                                   const mf_framework_place *place, mf_framework_estimate *estimate, memfit_error *err)
{
    if (place->cpu)
        return runtime == MF_RUNTIME_TENSORFLOW
                   ? predict_on_cpu(host, graph, place, estimate, err)
                   : mf_fail(err, MEMFIT_UNSUPPORTED, "there is no model of %s on a cpu", rows[runtime].title);
    return runtime == MF_RUNTIME_TORCH ? predict_torch(host, graph, place, estimate, err)
                                       : predict_xla(host, runtime, graph, place, estimate, err);
}
