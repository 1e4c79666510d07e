/*
 * oom_suggest.c: from the cause to the line to change.
 *
 * One table. A row says for which causes and frameworks it is meant, when it is out of place, by which words in the
 * text it is known to be in force, and the line itself; rows are in the order of preference, the first four that fit
 * are given. Every class (id) that mends something was run: a program that died, changed by this line alone, survived.
 * Which program, is in tests/fixtures/oom-logs/cases.json; the test fails for a class without one.
 *
 * Tried and dropped: torch.cuda.empty_cache() against fragmentation (PyTorch does that itself before it gives up), and
 * XLA_PYTHON_CLIENT_PREALLOCATE=false in the process that was refused (the pool backs off down to the request before it
 * gives up, so preallocation is not what refused; in the process that holds the card it helps); and
 * keras.backend.clear_session() between folds (on an H200 TensorFlow 2.21 kept every variable of a model that had been
 * fitted, deleted and cleared; only run_eagerly=True let it go).
 */
#include "diagnose/oom_log.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

/* ---- when ------------------------------------------------------------------------------------------------- */

static bool limit_below_fraction(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->fraction < 0.95 && !f->host && !f->governed;
}

static bool refused_on_host(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->host && f->host_end <= MF_HOST_REFUSED;
}

static bool on_host(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->host;
}

static bool on_card(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return !f->host;
}

static bool limits_itself(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    return on_card(f, d) && !f->governed;
}

static bool conf_limits(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    for (size_t i = 0; i < f->setting_count; i++)
        if (strstr(f->settings[i], "per_process_memory_fraction:"))
            return true;
    return false;
}

static bool code_limits(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    bool part = f->governed || (f->card && f->others > f->card); /* memfit limits, not PyTorch */
    return !conf_limits(f, d) && !f->host && !f->mps && !part && !f->serves;
}

static bool plan_did_not_fit(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->plan_failed;
}

static bool asked_by_attention(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->attention;
}

static bool asked_by_optimizer(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->optimizer;
}

/* A server, or a program that is none of the three and need not train at all. */
static bool not_training(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->serves || (f->program && strcmp(f->framework, "unknown") == 0);
}

/* What the batch has no part in: an optimizer's state, an array of data, shared memory. */
static bool shrinks_with_batch(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    return !f->optimizer && !f->array && f->host_end != MF_HOST_SHARED && !not_training(f, d);
}

static bool shared_is_full(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->host_end == MF_HOST_SHARED;
}

static bool by_group(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->host_end == MF_HOST_GROUP;
}

static bool by_workers(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->worker || (f->host_end == MF_HOST_SHARED && strcmp(f->framework, "pytorch") == 0);
}

static bool wide_numbers(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->wide_numbers;
}

/* Data, as far as one can tell: numpy asked, or it died before any framework spoke. */
static bool holds_data(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->host && f->host_end != MF_HOST_SHARED && (f->array || strcmp(f->framework, "unknown") == 0);
}

static bool killed_without_reason(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->host_end == MF_HOST_KILLED;
}

/* The process could not even begin: a context, not a library's handle. Then it holds nothing itself. */
static bool no_context(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    return d->cause == MEMFIT_DIAGNOSIS_LIBRARY && !f->torch_message &&
           (strstr(f->library_text, "cudaErrorMemoryAllocation") || strstr(f->library_text, "CUDA error"));
}

static bool has_context(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    return !no_context(f, d);
}

static bool no_limit_yet(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    return !f->limit && has_context(f, d);
}

static bool no_context_preallocates(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    return no_context(f, d) && !f->preallocate_off;
}

static bool no_context_no_growth(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    return no_context(f, d) && !f->growth_on;
}

static bool not_expandable(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return !f->expandable_on && !f->async_on;
}

static bool not_async(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return !f->async_on;
}

static bool process_known(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->process_count > 0;
}

/* Without preallocation XLA's pool grows by doubling, so the first piece it is refused is a power of two; with it, the
 * first piece is a fraction of the card. Who turned it off here has turned it off for the other process too. */
static bool preallocates(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return !f->preallocate_off && !(f->refused_first && !(f->refused_first & (f->refused_first - 1)));
}

static bool preallocates_on_card(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    return !f->host && preallocates(f, d);
}

static bool no_growth_on_card(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return !f->host && !f->growth_on;
}

/* The other framework is the one named. */
static bool jax_named(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->names_jax;
}

static bool jax_holds_too_much(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    return f->names_jax && preallocates(f, d);
}

static bool jax_has_no_share(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->names_jax && (!f->fraction_set || f->fraction > 0.3);
}

static bool tensorflow_named(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->names_tensorflow;
}

static bool tensorflow_holds_all(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->names_tensorflow && !f->growth_on;
}

/* None is named: it may be any that takes more than it needs. */
static bool some_jax(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    bool torch = strcmp(f->framework, "pytorch") != 0 && f->names_torch;
    return !f->names_jax && !f->names_tensorflow && !torch && preallocates(f, d);
}

static bool some_tensorflow(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    bool torch = strcmp(f->framework, "pytorch") != 0 && f->names_torch;
    return !f->names_jax && !f->names_tensorflow && !torch && !f->growth_on;
}

static bool torch_may_hold(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->names_torch;
}

static bool no_growth(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return !f->growth_on;
}

static bool growth(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->growth_on;
}

static bool by_folds(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return f->folds;
}

static bool with_gradients(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return !f->no_grad_on;
}

static bool predicts(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return strstr(f->evaluation_text, "predict") != NULL;
}

static bool leaves_no_room(const mf_oom_facts *f, const memfit_diagnosis *d)
{
    (void)d;
    return !f->fraction_set || f->fraction > 0.7;
}

/* ---- what ------------------------------------------------------------------------------------------------- */

#define C(cause) (1u << MEMFIT_DIAGNOSIS_##cause)
#define SIZE     (C(TOO_LARGE) | C(LIMIT))
enum {
    TORCH = MF_OOM_TORCH,
    TF = MF_OOM_TENSORFLOW,
    JAX = MF_OOM_JAX,
    OWN = MF_OOM_MEMFIT,
    OTHER = MF_OOM_UNKNOWN,
    THEIRS = TORCH | TF | JAX | OTHER,
    ANY = THEIRS | OWN
};

static const mf_oom_class classes[] = {
    /* a limit, and sheer size */
    {"limit-shm", C(LIMIT), ANY, 0, shared_is_full, "--shm-size=",
     "docker run --shm-size=8g ...  # or --ipc=host; without a container: mount -o remount,size=8g /dev/shm",
     "workers hand batches over in /dev/shm, and it is full"},
    {"limit-container", C(LIMIT), ANY, 0, by_group, "docker run --memory=",
     "docker run --memory=16g ...  # Slurm: sbatch --mem=16G; Kubernetes: resources.limits.memory: 16Gi",
     "that limit is what killed it; the machine may have more"},
    {"workers", SIZE, ANY, 0, by_workers, "num_workers=0",
     "DataLoader(dataset, num_workers=0)  # then 1, 2, ... as far as it goes",
     "every worker holds batches and copies of its own"},
    {"narrow", SIZE, ANY, 0, wide_numbers, "dtype=np.float32", "x = np.zeros(shape, dtype=np.float32)",
     "half the bytes of float64, and what frameworks train in"},
    {"map", SIZE, ANY, 0, holds_data, "mmap_mode=", "x = np.load('x.npy', mmap_mode='r')",
     "data stays in its file, and only what is read takes memory"},
    {"limit-host", C(LIMIT), THEIRS, 0, refused_on_host, "ulimit -v unlimited",
     "ulimit -v unlimited  # or a larger memory limit of the container",
     "the machine has more than this process may use"},
    {"limit-torch", C(LIMIT), TORCH, 0, conf_limits, NULL, "PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:1.0",
     "the limit is what refused, the card has room"},
    {"limit-torch", C(LIMIT), TORCH, 0, code_limits, "set_per_process_memory_fraction(1.0)",
     "torch.cuda.set_per_process_memory_fraction(1.0)", "the limit is what refused, the card has room"},
    {"limit-jax", C(LIMIT), JAX, 0, limit_below_fraction, NULL, "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95",
     "the pool is a part of the card (75 % unless set)"},
    {"limit-tensorflow", C(LIMIT), TF, MF_OOM_AGAIN, limits_itself, NULL,
     "for gpu in tf.config.list_physical_devices('GPU'): tf.config.set_logical_device_configuration(gpu, "
     "[tf.config.LogicalDeviceConfiguration(memory_limit={mb})])",
     "the limit is what refused; this is what was in use, what was asked, and a tenth more (MB)"},
    {"limit-memfit", C(LIMIT), OWN, MF_OOM_AGAIN, plan_did_not_fit, NULL, "--memory {mb}MiB",
     "what the step needs as it was asked for, and a tenth more"},
    {"limit-memfit", C(LIMIT), OWN, MF_OOM_AGAIN, NULL, NULL, "memfit_pool_set_limit(pool, {bytes}, false, &err);",
     "the limit is what refused; it can be changed while the pool runs"},
    {"attention", SIZE, TORCH, 0, asked_by_attention, "need_weights=False",
     "attention(q, k, v, need_weights=False)  # or torch.nn.functional.scaled_dot_product_attention(q, k, v)",
     "the scores of all pairs are then never stored whole"},
    {"optimizer", SIZE, TORCH, 0, asked_by_optimizer, "torch.optim.SGD(",
     "optimizer = torch.optim.SGD(model.parameters(), lr)",
     "the optimizer's step asked: Adam keeps twice the parameters, this keeps nothing"},
    {"batch", SIZE, THEIRS, MF_OOM_AGAIN, shrinks_with_batch, NULL, "batch_size = batch_size // 2",
     "half the batch halves the activations"},
    {"pieces-torch", SIZE, TORCH, MF_OOM_AGAIN, shrinks_with_batch, NULL,
     "for x, y in zip(batch_x.split(n), batch_y.split(n)): (loss_fn(model(x), y) / pieces).backward()",
     "the same batch in micro-batches: gradients add up"},
    {"pieces-tensorflow", SIZE, TF, 0, NULL, "gradient_accumulation_steps",
     "optimizer = keras.optimizers.Adam(gradient_accumulation_steps=8)  # with batch_size // 8",
     "the same batch in micro-batches: gradients add up"},
    {"pieces-memfit", SIZE, OWN, MF_OOM_AGAIN, plan_did_not_fit, NULL,
     "take out --gradient-accumulation off and --recompute off, if they are there",
     "micro-batches and recomputation are then planned so that the step fits"},
    {"recompute-torch", SIZE, TORCH, 0, shrinks_with_batch, "checkpoint.checkpoint(",
     "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)  # in the model, for each block",
     "what a block keeps for the backward pass is computed again there"},
    {"recompute-jax", SIZE, JAX, 0, NULL, "jax.checkpoint(", "block = jax.checkpoint(block)  # each block of the model",
     "what a block keeps for the backward pass is computed again there"},
    {"dmesg", SIZE, ANY, MF_OOM_LOOKS, killed_without_reason, NULL, "dmesg -T | grep -i 'killed process'",
     "whom the kernel killed, with how much, and whether for the machine or for a container's limit"},
    {"ps", SIZE, ANY, MF_OOM_LOOKS, not_training, NULL, "memfit ps",
     "shows who holds which card; CUDA_VISIBLE_DEVICES chooses a free one"},
    {"plan", SIZE, TF | OWN, MF_OOM_LOOKS, NULL, NULL, "memfit plan model.keras --batch-size N --for CARD",
     "what a step needs, and what would fit, before running it"},

    /* fragmentation */
    {"expandable", C(FRAGMENTATION), TORCH, 0, not_expandable, NULL,
     "PYTORCH_CUDA_ALLOC_CONF={conf}expandable_segments:True", "free pages are then joined instead of being refused"},
    {"async-torch", C(FRAGMENTATION), TORCH, 0, not_async, NULL, "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync",
     "if that is set already: the driver's own pool in place of PyTorch's"},
    {"async-tensorflow", C(FRAGMENTATION), TF, 0, not_async, NULL, "TF_GPU_ALLOCATOR=cuda_malloc_async",
     "the driver's pool can move free pages"},
    {"async-jax", C(FRAGMENTATION), JAX, 0, not_async, NULL, "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async",
     "the driver's pool can move free pages"},
    {"stays-first", C(FRAGMENTATION), TORCH, 0, NULL, "kept = torch.empty(",
     "kept = torch.empty((n, *y.shape), device='cuda')  # once, before the loop; in it: kept[i] = y",
     "what stays is not strewn between what is temporary"},
    {"stays-first", C(FRAGMENTATION), ANY, 0, NULL, "allocate what stays",
     "allocate what stays before what is temporary", "what stays is then not strewn between what is freed"},

    /* somebody else on the card */
    {"stop-process", C(OTHER_PROCESS), ANY, MF_OOM_AGAIN, process_known, NULL,
     "ps -o user,etime,args -p {pid}  # whose is it? If it is yours and done with: kill {pid}",
     "the largest other process"},
    {"growth-jax", C(OTHER_PROCESS), ANY, 0, preallocates_on_card, NULL,
     "XLA_PYTHON_CLIENT_PREALLOCATE=false  # for the other process, if it is JAX",
     "JAX takes 75 % of the card at its first use"},
    {"growth-tensorflow", C(OTHER_PROCESS), ANY, 0, no_growth_on_card, NULL,
     "TF_FORCE_GPU_ALLOW_GROWTH=true  # for the other process, if it is TensorFlow",
     "TensorFlow takes the whole card at its first use"},
    {"batch", C(OTHER_PROCESS), TORCH | TF | JAX, MF_OOM_AGAIN, process_known, NULL, "batch_size = batch_size // 2",
     "a smaller step may fit beside it"},
    {"growth-jax", C(OTHER_FRAMEWORK), TORCH | TF | OTHER, 0, jax_holds_too_much, NULL,
     "XLA_PYTHON_CLIENT_PREALLOCATE=false", "JAX takes 75 % of the card at its first use"},
    {"fraction-jax", C(OTHER_FRAMEWORK), TORCH | TF | OTHER, 0, jax_has_no_share, NULL,
     "XLA_PYTHON_CLIENT_MEM_FRACTION=0.3", "keeps JAX to a share of the card"},
    {"hide-jax", C(OTHER_FRAMEWORK), TORCH | TF | OTHER, 0, jax_named, NULL, "JAX_PLATFORMS=cpu",
     "if JAX only prepares data, it needs no card"},
    {"growth-tensorflow", C(OTHER_FRAMEWORK), TORCH | JAX | OTHER, 0, tensorflow_holds_all, NULL,
     "TF_FORCE_GPU_ALLOW_GROWTH=true", "TensorFlow takes the whole card at its first use"},
    {"hide-tensorflow", C(OTHER_FRAMEWORK), TORCH | JAX | OTHER, 0, tensorflow_named, "set_visible_devices([]",
     "tf.config.set_visible_devices([], 'GPU')", "if TensorFlow only prepares data, it needs no card"},
    {"growth-jax", C(OTHER_FRAMEWORK), TORCH | TF | OTHER, 0, some_jax, NULL,
     "XLA_PYTHON_CLIENT_PREALLOCATE=false  # if JAX is in this process", "JAX takes 75 % of the card at its first use"},
    {"growth-tensorflow", C(OTHER_FRAMEWORK), TORCH | JAX | OTHER, 0, some_tensorflow, NULL,
     "TF_FORCE_GPU_ALLOW_GROWTH=true  # if TensorFlow is in this process",
     "TensorFlow takes the whole card at its first use"},
    {"share-torch", C(OTHER_FRAMEWORK), TF | JAX | OTHER, 0, torch_may_hold, "set_per_process_memory_fraction(",
     "torch.cuda.set_per_process_memory_fraction(0.5)", "keeps PyTorch to a share of the card"},
    {"release-torch", C(OTHER_FRAMEWORK), TF | JAX | OTHER, 0, torch_may_hold, "torch.cuda.empty_cache()",
     "del model, optimizer; torch.cuda.empty_cache()  # when PyTorch's part is done",
     "PyTorch keeps what it has freed until it is told to give it back"},

    /* growing */
    {"release-torch", C(GROWING), TORCH, 0, by_folds, "torch.cuda.empty_cache()",
     "del model, optimizer; torch.cuda.empty_cache()", "the model of one fold dies before the next is made"},
    {"release-jax", C(GROWING), JAX, 0, by_folds, "jax.clear_caches()", "del params, opt_state; jax.clear_caches()",
     "the model of one fold dies before the next is made"},
    {"release-tensorflow", C(GROWING), TF, 0, by_folds, "multiprocessing.get_context(",
     "multiprocessing.get_context('spawn').Process(target=train_fold, args=(fold,))  # start, join: a process each",
     "a compiled training function keeps its variables; clear_session() frees them with run_eagerly=True only"},
    {"number", C(GROWING), TORCH, 0, NULL, "append(loss.item())",
     "history.append(loss.item())  # not: history.append(loss)", "a kept loss keeps its whole graph"},
    {"bounded", C(GROWING), THEIRS, 0, on_host,
     "deque(maxlen=", "kept = collections.deque(maxlen=100)  # not a list that only grows",
     "what is kept from step to step stays bounded"},
    {"host", C(GROWING), TORCH, 0, on_card, ".detach().cpu()", "kept.append(output.detach().cpu())",
     "what must be kept goes to the host"},
    {"host", C(GROWING), TF | JAX | OTHER, 0, on_card, "np.asarray(output)", "kept.append(np.asarray(output))",
     "what must be kept goes to the host"},
    {"release-torch", C(GROWING), TORCH, 0, NULL, "torch.cuda.empty_cache()",
     "del model, optimizer; torch.cuda.empty_cache()", "models of earlier folds die with their optimizer"},
    {"release-jax", C(GROWING), JAX, 0, NULL, "jax.clear_caches()", "del params, opt_state; jax.clear_caches()",
     "models of earlier runs are released"},
    {"release-tensorflow", C(GROWING), TF, 0, NULL, "multiprocessing.get_context(",
     "multiprocessing.get_context('spawn').Process(target=train_fold, args=(fold,))  # start, join: a process each",
     "a compiled training function keeps its variables; clear_session() frees them with run_eagerly=True only"},
    {"replay", C(GROWING), OWN, MF_OOM_LOOKS, NULL, NULL, "memfit replay TRACE",
     "draws what was held over time, and the failure's owners"},

    /* evaluation */
    {"no-grad", C(EVALUATION), TORCH, 0, with_gradients, "torch.no_grad()", "with torch.no_grad(): output = model(x)",
     "nothing is kept for a backward pass that never comes"},
    {"eval-batch", C(EVALUATION), TORCH, MF_OOM_AGAIN, NULL, NULL,
     "output = torch.cat([model(x).detach() for x in val_x.split(64)])",
     "evaluated in smaller batches: the results are the same"},
    {"eval-batch", C(EVALUATION), JAX | OTHER, MF_OOM_AGAIN, NULL, NULL,
     "output = jnp.concatenate([predict(x) for x in jnp.split(val_x, 16)])",
     "evaluated in smaller batches: the results are the same"},
    {"eval-batch", C(EVALUATION), TF, MF_OOM_AGAIN, predicts, NULL, "model.predict(x, batch_size=1)  # then 2, 4, ...",
     "predicted in smaller batches: the results are the same"},
    {"eval-batch", C(EVALUATION), TF, MF_OOM_AGAIN, NULL, NULL,
     "model.evaluate(x, y, batch_size=1)  # in fit: validation_batch_size=1; then 2, 4, ...",
     "evaluated in smaller batches: the results are the same"},

    /* libraries */
    {"ps", C(LIBRARY), ANY, MF_OOM_LOOKS, no_context, NULL, "memfit ps",
     "shows who holds which card: this process could not begin; CUDA_VISIBLE_DEVICES chooses a free one"},
    {"growth-jax", C(LIBRARY), ANY, 0, no_context_preallocates, NULL,
     "XLA_PYTHON_CLIENT_PREALLOCATE=false  # for the other process, if it is JAX",
     "JAX takes 75 % of the card at its first use"},
    {"growth-tensorflow", C(LIBRARY), ANY, 0, no_context_no_growth, NULL,
     "TF_FORCE_GPU_ALLOW_GROWTH=true  # for the other process, if it is TensorFlow",
     "TensorFlow takes the whole card at its first use"},
    {"empty-cache", C(LIBRARY), TORCH, 0, has_context, "torch.cuda.empty_cache()",
     "torch.cuda.empty_cache()  # before the call that failed",
     "gives what PyTorch keeps but does not use back to the card"},
    {"headroom-torch", C(LIBRARY), TORCH, 0, no_limit_yet, "set_per_process_memory_fraction(",
     "torch.cuda.set_per_process_memory_fraction(0.9)", "leaves room for contexts, handles and workspaces"},
    {"growth-tensorflow", C(LIBRARY), TF, 0, no_growth, NULL, "TF_FORCE_GPU_ALLOW_GROWTH=true",
     "leaves room for handles and workspaces"},
    {"limit-tensorflow", C(LIBRARY), TF, 0, growth, "LogicalDeviceConfiguration(memory_limit=",
     "for gpu in tf.config.list_physical_devices('GPU'): tf.config.set_logical_device_configuration(gpu, "
     "[tf.config.LogicalDeviceConfiguration(memory_limit=LESS_MB)])",
     "leaves room for handles and workspaces"},
    {"fraction-jax", C(LIBRARY), JAX, 0, leaves_no_room, NULL, "XLA_PYTHON_CLIENT_MEM_FRACTION=0.7",
     "leaves room for handles and workspaces"},

    /* where to look */
    {"ps", C(OTHER_FRAMEWORK), ANY, MF_OOM_LOOKS, NULL, NULL, "memfit ps",
     "while it runs: is it this process that holds the card?"},
    {"ps", C(OTHER_PROCESS) | C(LIBRARY), ANY, MF_OOM_LOOKS, NULL, NULL, "memfit ps",
     "shows who holds which card; CUDA_VISIBLE_DEVICES chooses a free one"},
    {"doctor", ~0u, ANY, MF_OOM_LOOKS, NULL, NULL, "memfit doctor",
     "checks driver, libraries, cards and settings against each other"},
};
enum { CLASS_COUNT = sizeof classes / sizeof *classes };
_Static_assert(CLASS_COUNT <= 128, "mf_oom_facts.seen has a bit for each row");

const mf_oom_class *mf_oom_classes(size_t *count)
{
    *count = CLASS_COUNT;
    return classes;
}

/* ---- together --------------------------------------------------------------------------------------------- */

static unsigned framework_bit(const char *name)
{
    return strcmp(name, "pytorch") == 0      ? TORCH
           : strcmp(name, "tensorflow") == 0 ? TF
           : strcmp(name, "jax") == 0        ? JAX
           : strcmp(name, "memfit") == 0     ? OWN
                                             : OTHER;
}

/* What would have been enough, with a tenth more. */
static uint64_t enough(const mf_oom_facts *f)
{
    const uint64_t most = UINT64_MAX / 8;
    if (f->in_use > most || f->request > most || f->limit > most)
        return 0;
    uint64_t sum = f->in_use + f->request;
    if (!f->plan_failed && sum <= f->limit) /* it was refused below the limit: whole pages, or pieces */
        sum = f->limit + f->request;
    return sum + sum / 10;
}

/* The settings PyTorch's allocator has already, to be kept in front of a further one. */
static void conf_of(const mf_oom_facts *f, char *text, size_t bytes)
{
    text[0] = 0;
    for (size_t i = 0; i < f->setting_count; i++) {
        const char *value = strstr(f->settings[i], "ALLOC_CONF=");
        if (value)
            snprintf(text, bytes, "%s,", value + 11);
    }
}

static void fill(const char *text, const mf_oom_facts *f, char *out, size_t bytes)
{
    size_t n = 0;
    char value[120];
    while (*text && n + 1 < bytes) {
        size_t token = *text == '{' ? strcspn(text, "}") + 1 : 0;
        value[0] = 0;
        if (token && strncmp(text, "{pid}", token) == 0)
            snprintf(value, sizeof value, "%u", f->processes[0].pid);
        else if (token && strncmp(text, "{mb}", token) == 0)
            snprintf(value, sizeof value, "%llu", (unsigned long long)(enough(f) / MIB + 1));
        else if (token && strncmp(text, "{bytes}", token) == 0)
            snprintf(value, sizeof value, "%llu", (unsigned long long)enough(f));
        else if (token && strncmp(text, "{size}", token) == 0)
            snprintf(value, sizeof value, "%lluMiB", (unsigned long long)((f->limit ? f->limit : f->card) / MIB));
        else if (token && strncmp(text, "{conf}", token) == 0)
            conf_of(f, value, sizeof value);
        else
            token = 0;
        if (!token) {
            out[n++] = *text++;
            continue;
        }
        size_t length = strlen(value);
        length = length < bytes - 1 - n ? length : bytes - 1 - n;
        memcpy(out + n, value, length);
        n += length;
        text += token;
    }
    out[n] = 0;
}

/* A line of the environment that the text shows with the same value. A remark behind it does not count. */
static bool is_set(const mf_oom_facts *f, const char *change)
{
    const char *remark = strstr(change, "  #");
    size_t n = remark ? (size_t)(remark - change) : strlen(change);
    for (size_t i = 0; i < f->setting_count; i++)
        if (strlen(f->settings[i]) == n && strncmp(f->settings[i], change, n) == 0)
            return true;
    return false;
}

void mf_oom_suggest(const mf_oom_facts *f, memfit_diagnosis *d)
{
    unsigned framework = framework_bit(f->framework);
    for (size_t i = 0; i < CLASS_COUNT && d->suggestion_count < MEMFIT_DIAGNOSIS_SUGGESTIONS; i++) {
        const mf_oom_class *c = &classes[i];
        if (!(c->causes >> d->cause & 1) || !(c->frameworks & framework) || f->seen[i / 64] >> i % 64 & 1 ||
            (c->fits && !c->fits(f, d)))
            continue;
        if (strcmp(c->id, "doctor") == 0 && d->suggestion_count)
            continue; /* only when there is nothing better to say */
        bool given = false;
        for (size_t k = 0; k < d->suggestion_count; k++)
            given |= strcmp(d->suggestions[k].kind, c->id) == 0;
        char change[sizeof d->suggestions[0].change];
        fill(c->change, f, change, sizeof change);
        if (given || is_set(f, change))
            continue;
        size_t at = d->suggestion_count++;
        snprintf(d->suggestions[at].change, sizeof d->suggestions[at].change, "%s", change);
        snprintf(d->suggestions[at].kind, sizeof d->suggestions[at].kind, "%s", c->id);
        fill(c->why, f, d->suggestions[at].why, sizeof d->suggestions[at].why);
    }
}
