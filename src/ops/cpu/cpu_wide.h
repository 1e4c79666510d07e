/* cpu_wide.h: how an operation on 16-bit operands is divided: made by cpu_wide.c, carried out by cpu_wide_run.c. */
#ifndef MF_OPS_CPU_WIDE_H
#define MF_OPS_CPU_WIDE_H

#include "ops/cpu/cpu_ops.h"

/* How an operand goes through the parts. `like`: part where it has the result's first axis, whole where it is the same
 * for all. `flat`: element by element, whatever the shape; its `bits` are 8 to a byte. */
typedef enum { WHOLE = 'w', PART = 'p', LIKE = 'l', FLAT = 'f', BITS = 'b', SUM = 's' } wide_role;

typedef struct wide_operand {
    wide_role role;
    bool half;            /* has a float32 copy */
    uint32_t owner;       /* of the copy: itself, or an earlier operand that is the same tensor */
    uint32_t axis;        /* PART: which is divided */
    int64_t outer, inner; /* PART: elements are [outer][units][inner] */
    uint64_t at;          /* of the copy in workspace */
} wide_operand;

struct cpu_wide {
    mf_graph graph[2]; /* one operation on float32: a part, the rest */
    mf_op op[2];
    mf_tensor *tensors[2];
    mf_storage *storages;
    mf_kernel *kernel[2];
    wide_operand *operands; /* inputs, then outputs */
    void **pointers;
    uint32_t *ids;
    uint32_t count;
    int64_t units, part, rest; /* rest: 0 when parts divide evenly */
    bool rows_of_bias;         /* sums start from it */
    uint64_t copies_bytes, bytes;
};

static inline const mf_tensor *cpu_wide_real(const cpu_kernel *k, uint32_t i)
{
    return i < k->op->in_count ? cpu_in(k, i) : cpu_out(k, i - k->op->in_count);
}

static inline bool cpu_wide_is_divided(const cpu_wide *w)
{
    return w->part < w->units;
}

#endif
