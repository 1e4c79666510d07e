/*
 * oom_filter.c: most lines of a long log say nothing. Each group of phrases names four letters that every line it could
 * read must hold; one pass over a line looks its groups of four letters up in a small table (a hash, letters folded to
 * lower case, so it can only say "perhaps" too often) and gives the readers worth calling. 100 MB take 0.15 s in place
 * of 1.8 s. Tried and dropped: "jax" with every fourth letter in the table, which made two lines of three a "perhaps".
 */
#include "diagnose/oom_filter.h"

#include "diagnose/oom_log.h"

#include <string.h>

/* Four letters, in lower case. */
static uint32_t letters_at(const char *text)
{
    uint32_t letters;
    memcpy(&letters, text, sizeof letters);
    return letters | 0x20202020u;
}

static unsigned slot_of(uint32_t letters)
{
    return (letters * 0x9E3779B1u) >> (32 - MF_LINE_FILTER_BITS);
}

/* A second opinion, so that letters that only share a slot with a key are not one. */
static unsigned other_slot_of(uint32_t letters)
{
    return (letters * 0x85EBCA6Bu) >> (32 - MF_LINE_FILTER_BITS);
}

static void add(mf_line_filter *filter, const char *four, unsigned groups)
{
    filter->groups[slot_of(letters_at(four))] |= (uint8_t)groups;
    filter->again[other_slot_of(letters_at(four))] |= (uint8_t)groups;
}

static const struct {
    char four[5];
    uint8_t groups;
} keys[] = {
    {"da o", MF_LINE_FAILURE},                 /* CUDA out of memory */
    {"cpua", MF_LINE_FAILURE},                 /* DefaultCPUAllocator */
    {"n ou", MF_LINE_FAILURE},                 /* ran out of memory */
    {"xhau", MF_LINE_FAILURE | MF_LINE_NAMES}, /* RESOURCE_EXHAUSTED, ResourceExhaustedError */
    {"m wh", MF_LINE_FAILURE},                 /* OOM when allocating */
    {"{{no", MF_LINE_FAILURE},                 /* [[{{node */
    {"iled", MF_LINE_FAILURE},                 /* failed to allocate, failed to create */
    {"ceed", MF_LINE_FAILURE | MF_LINE_HOST},  /* exceeds the base limit, exceeded memory limit */
    {"imit", MF_LINE_FAILURE | MF_LINE_HOST},  /* Limit:, (limit; Limits: of a container */
    {"nuse", MF_LINE_FAILURE},                 /* InUse: */
    {"efus", MF_LINE_FAILURE},                 /* memfit: refused */
    {"bfc_", MF_LINE_FAILURE},                 /* bfc_allocator: the bar */
    {"hunk", MF_LINE_FAILURE},                 /* Chunks of size */
    {"blas", MF_LINE_FAILURE},                 /* CUBLAS_STATUS, cuBLAS handle */
    {"udnn", MF_LINE_FAILURE},                 /* CUDNN_STATUS, cudnn handle */
    {"usol", MF_LINE_FAILURE},                 /* CUSOLVER_STATUS */
    {"uspa", MF_LINE_FAILURE},                 /* CUSPARSE_STATUS */
    {"uran", MF_LINE_FAILURE},                 /* CURAND_STATUS */
    {"ling", MF_LINE_FAILURE},                 /* when calling `cu...Create( */
    {"ufft", MF_LINE_FAILURE},                 /* CUFFT_ALLOC_FAILED */
    {"rorm", MF_LINE_FAILURE},                 /* cudaErrorMemoryAllocation */
    {"a er", MF_LINE_FAILURE},                 /* CUDA error */
    {"torc", MF_LINE_FAILURE | MF_LINE_NAMES}, /* torch.OutOfMemoryError */
    {"tens", MF_LINE_NAMES},                   /* tensorflow */
    {"tf.e", MF_LINE_NAMES},                   /* tf.errors */
    {"mfit", MF_LINE_NAMES},                   /* memfit: */
    {"loc_", MF_LINE_SETTINGS},                /* PYTORCH_CUDA_ALLOC_CONF */
    {"_gro", MF_LINE_SETTINGS},                /* TF_FORCE_GPU_ALLOW_GROWTH, set_memory_growth */
    {"gpu_", MF_LINE_SETTINGS},                /* TF_GPU_ALLOCATOR */
    {"xla_", MF_LINE_SETTINGS},                /* XLA_PYTHON_CLIENT_... */
    {"visi", MF_LINE_SETTINGS},                /* CUDA_VISIBLE_DEVICES */
    {"jax_", MF_LINE_SETTINGS},                /* JAX_PLATFORMS */
    {"xpan", MF_LINE_SETTINGS},                /* expandable_segments */
    {"orat", MF_LINE_SETTINGS},                /* decorate_context */
    {"o_gr", MF_LINE_SETTINGS},                /* torch.no_grad */
    {"nce_", MF_LINE_SETTINGS},                /* torch.inference_mode */
    {"frac", MF_LINE_SETTINGS},                /* MEM_FRACTION */
    {"le \"", MF_LINE_FRAME | MF_LINE_NAMES},  /* File " */
    {"mory", MF_LINE_SERIES},                  /* memory 5192 MiB */
    {"ocat", MF_LINE_SERIES},                  /* allocated */
    {"n us", MF_LINE_SERIES},                  /* in use */
    {"mem:", MF_LINE_SERIES},                  /* mem: 1.2G */
    {"mem=", MF_LINE_SERIES},                  /* mem=1.2G */
    {"mem ", MF_LINE_SERIES},                  /* mem 1240 MB */
    {"mem_", MF_LINE_SERIES},                  /* mem_mb=1240 */
    {"rss ", MF_LINE_SERIES},                  /* RSS 1240 MB */
    {"rss:", MF_LINE_SERIES},                  /* rss: 1240 MB */
    {"rss=", MF_LINE_SERIES},                  /* rss=1240MB */
    {"rss_", MF_LINE_SERIES},                  /* rss_gb: 1.2 */
    {"rss(", MF_LINE_SERIES},                  /* RSS(MiB): 1240 */
    {"rss[", MF_LINE_SERIES},                  /* RSS[MiB] 1240 */
    {"rss\"", MF_LINE_SERIES},                 /* "rss": "1240 MB" */
    {"rss|", MF_LINE_SERIES},                  /* RSS| 1240 MB */
    {"resi", MF_LINE_SERIES},                  /* resident 1240 MB */
    {"nvml", MF_LINE_FAILURE},                 /* nvmlDevice...: PyTorch's report */
    {"vram", MF_LINE_SERIES},                  /* VRAM 3.1 GB */
    {"used", MF_LINE_SERIES},                  /* 3.1 GB used */
    {"vali", MF_LINE_WORDS},                   /* validation */
    {"eval", MF_LINE_WORDS},                   /* evaluating */
    {"pred", MF_LINE_WORDS},                   /* predicting */
    {"val_", MF_LINE_WORDS},                   /* val_step */
    {" tes", MF_LINE_WORDS},                   /* running test */
    {"infe", MF_LINE_WORDS},                   /* inference */
    {"y al", MF_LINE_FAILURE},                 /* Out of memory allocating */
    {"ip o", MF_LINE_FAILURE},                 /* HIP out of memory */
    {"pu o", MF_LINE_FAILURE},                 /* XPU out of memory */
    {"ip e", MF_LINE_FAILURE},                 /* HIP error */
    {"orou", MF_LINE_FAILURE},                 /* hipErrorOutOfMemory */
    {"mps ", MF_LINE_FAILURE},                 /* MPS backend out of memory */
    {"mps_", MF_LINE_SETTINGS},                /* PYTORCH_MPS_HIGH_WATERMARK_RATIO */
    {"nccl", MF_LINE_FAILURE},                 /* NCCL WARN Cuda failure 'out of memory' */
    {"mb m", MF_LINE_FAILURE},                 /* Created device ... with 5964 MB memory */
    {"arra", MF_LINE_HOST},                    /* Unable to allocate 3 GiB for an array */
    {"orye", MF_LINE_HOST},                    /* MemoryError */
    {"bad_", MF_LINE_HOST},                    /* std::bad_alloc */
    {"nnot", MF_LINE_HOST},                    /* Cannot allocate memory */
    {"kill", MF_LINE_HOST},                    /* Killed, SIGKILL, OOMKilled, oom-kill */
    {"exit", MF_LINE_HOST},                    /* exit code 137 */
    {"grou", MF_LINE_HOST},                    /* cgroup */
    {"avai", MF_LINE_FAILURE | MF_LINE_HOST},  /* all available RAM; no available memory for the cache blocks */
    {"died", MF_LINE_HOST},                    /* the kernel appears to have died */
    {"rupt", MF_LINE_HOST},                    /* terminated abruptly */
    {" low", MF_LINE_HOST},                    /* running low on memory */
    {"memc", MF_LINE_HOST},                    /* CONSTRAINT_MEMCG */
    {"meml", MF_LINE_HOST},                    /* TERM_MEMLIMIT */
    {"l_vm", MF_LINE_HOST},                    /* the kernel's table of tasks: total_vm */
    {"sage", MF_LINE_HOST},                    /* memory: usage 307200kB, limit 307200kB */
    {"y li", MF_LINE_HOST},                    /* Exceeded job memory limit */
    {"bus ", MF_LINE_HOST},                    /* Bus error */
    {"shar", MF_LINE_HOST},                    /* shared memory */
    {"/shm", MF_LINE_HOST},                    /* /dev/shm */
    {"</to", MF_LINE_HOST},                    /* </torch_4711_0>: a file of shared memory */
    {"pace", MF_LINE_HOST},                    /* No space left on device */
    {"rker", MF_LINE_HOST},                    /* DataLoader worker (pid */
    {"tofm", MF_LINE_FAILURE},                 /* OutOfMemory */
    {"d bu", MF_LINE_FAILURE},                 /* Invalid buffer size */
    {"rtup", MF_LINE_FAILURE},                 /* Free memory on device cuda:0 on startup */
    {"kv c", MF_LINE_FAILURE},                 /* KV cache is needed */
    {"uass", MF_LINE_FAILURE},                 /* GPUassert */
    {"a dr", MF_LINE_FAILURE},                 /* CUDA driver error */
    {"a_er", MF_LINE_FAILURE},                 /* CUDA_ERROR_OUT_OF_MEMORY */
    {"r ou", MF_LINE_FAILURE},                 /* Error out of memory at line */
    {"ur_r", MF_LINE_FAILURE},                 /* UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY */
    {"f si", MF_LINE_FAILURE | MF_LINE_HOST},  /* malloc of size, buffer of size */
    {"wine", MF_LINE_HOST},                    /* WinError 1455 */
    {"pagi", MF_LINE_HOST},                    /* the paging file is too small */
    {"c er", MF_LINE_HOST},                    /* C error: out of memory */
    {"_of_", MF_LINE_HOST},                    /* OUT_OF_MEMORY */
    {"srun", MF_LINE_HOST},                    /* srun: error: node: task 0: Out Of Memory */
    {"-oom", MF_LINE_HOST},                    /* systemd-oomd */
    {"vmrs", MF_LINE_HOST},                    /* earlyoom: VmRSS 24100 MiB */
    {"step", MF_LINE_GOES_ON},                 /* training goes on */
    {"trai", MF_LINE_GOES_ON},                 /* training goes on */
};

void mf_line_filter_make(mf_line_filter *filter)
{
    memset(filter, 0, sizeof *filter);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        add(filter, keys[i].four, keys[i].groups);
    size_t count;
    const mf_oom_class *classes = mf_oom_classes(&count);
    for (size_t i = 0; i < count; i++)
        if (classes[i].seen)
            add(filter, classes[i].seen + strlen(classes[i].seen) - 4, MF_LINE_SETTINGS);
}

unsigned mf_line_filter_groups(const mf_line_filter *filter, const char *text, size_t bytes)
{
    const uint32_t jax = letters_at("jax\n") & 0xFFFFFF; /* has three only */
    unsigned groups = 0;
    for (size_t i = 0; i + 4 <= bytes; i++) {
        uint32_t letters = letters_at(text + i);
        unsigned perhaps = filter->groups[slot_of(letters)];
        if (perhaps)
            groups |= perhaps & filter->again[other_slot_of(letters)];
        groups |= (unsigned)((letters & 0xFFFFFF) == jax) * MF_LINE_NAMES;
    }
    return groups;
}
