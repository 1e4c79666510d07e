/* feed_graph.h: a graph of nothing but an input and a target, for tests of feeders. */
#ifndef MF_TESTS_FEED_GRAPH_H
#define MF_TESTS_FEED_GRAPH_H

#include "data/feed.h"
#include "graph/build.h"
#include "test.h"

static inline mf_graph *graph_of(mf_shape x, mf_shape y)
{
    mf_build b;
    memfit_error err = {0};
    mf_graph *g = NULL;
    assert_ok(mf_build_begin(&b, NULL, &err), err);
    uint32_t roots[2] = {mf_g_input(&b, "image", MF_F32, x), mf_g_input(&b, "class", MF_I32, y)};
    assert_ok(mf_build_end_keeping(&b, 2, roots, &g), err);
    g->feeds = calloc(2, sizeof *g->feeds);
    g->feeds[0] = (mf_feed){"image", roots[0], 0, 0};
    g->feeds[1] = (mf_feed){"class", roots[1], 1, 0};
    g->feed_count = 2;
    return g;
}

static inline void drop_graph(mf_graph *g)
{
    free(g->feeds);
    g->feeds = NULL;
    g->feed_count = 0;
    mf_graph_destroy(g);
}

#endif
