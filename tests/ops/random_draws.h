/* random_draws.h: the inside of random_graph.c: what each draw appends to a graph. */
#ifndef MF_TESTS_OPS_RANDOM_DRAWS_H
#define MF_TESTS_OPS_RANDOM_DRAWS_H

#include "random_graph.h"

enum { MOST_POOL = 64, MOST_ELEMENTS = 512 };

typedef struct drawing {
    mf_build b;
    const subject *s;
    int64_t batch;
    uint32_t pool[MOST_POOL], pool_count; /* tensors that draws may read */
    uint32_t names;
} drawing;

/* A tensor, or MF_NONE where it cannot be drawn here. */
typedef uint32_t draw_rule(drawing *d, const uint32_t *w);
typedef struct random_rule {
    const char *name;
    draw_rule *rule;
    uint32_t share;
} random_rule;
extern const random_rule random_rules[];
extern const uint32_t random_rule_count;

mf_shape draw_shape_of(const drawing *d, uint32_t x);
void draw_add(drawing *d, uint32_t x);
uint32_t draw_feed(drawing *d, const char *name, mf_dtype dtype, mf_shape shape, uint32_t role);
uint32_t draw_variable(drawing *d, mf_var_role role, mf_shape shape, double initial);
uint32_t draw_weights(drawing *d, mf_shape shape);
mf_shape draw_shape1(int64_t a);
mf_shape draw_shape2(int64_t a, int64_t b);

#endif
