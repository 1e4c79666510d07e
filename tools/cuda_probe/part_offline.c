/* part_offline.c: the part workspaces-offline, against a card's own answers where a file of them is given. */
#include "convolution.h"

/*
 * A file of answers from a card (tests/fixtures/cuda/h200-convolutions.txt) against the described device's. Two things
 * are known to differ (docs/bench/cuda.md). Engines that ask cuBLASLt refuse without a card. Kernels that share out the
 * reduction among multiprocessors (stream-K) ask the driver how many clusters of blocks run at once, and take 18
 * multiprocessors where there is no driver: for them the rule below bounds the card's figure from above.
 */
static int64_t knob_value(const char *knobs, cudnnBackendKnobType_t type)
{
    char name[20];
    snprintf(name, sizeof name, "k%d=", (int)type);
    for (const char *p = knobs; p != NULL; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, name, strlen(name)) == 0)
            return atoll(p + strlen(name));
    }
    return -1;
}

static bool shares_reduction(const char *knobs)
{
    return knob_value(knobs, CUDNN_KNOB_TYPE_TILE_CGA_M) >= 0 && knob_value(knobs, CUDNN_KNOB_TYPE_WORKSPACE) >= 0;
}

/* The most that the card may answer, given what the described device answers. A workspace knob other than 0 forbids
 * partial tiles: the card then needs what is described, or a counter less. */
static int64_t bound(const struct config *c, int multiprocessors)
{
    enum { TILE = 256 * 128 * 4, COUNTERS = 2 * 4 }; /* bytes: the largest tile of partial sums, and two counters */
    if (!shares_reduction(c->knobs) || knob_value(c->knobs, CUDNN_KNOB_TYPE_WORKSPACE) != 0)
        return c->workspace;
    return c->workspace + (int64_t)multiprocessors * (TILE + COUNTERS);
}

enum { GROUPS = 200 };
struct group { /* configurations of one engine */
    int type, direction;
    long long engine;
    int configs, refused, equal, above, smaller; /* above: the bound; smaller: the card's figure */
    int64_t least, most;                         /* card's figure less the described one's */
};

static struct group *group_of(struct group *groups, int *count, const struct job *j, long long engine)
{
    for (int i = 0; i < *count; i++)
        if (groups[i].type == j->type && groups[i].direction == j->direction && groups[i].engine == engine)
            return &groups[i];
    if (*count == GROUPS)
        return NULL;
    groups[*count] = (struct group){.type = j->type, .direction = j->direction, .engine = engine};
    return &groups[(*count)++];
}

static int read_job(const char *line, struct job *j)
{
    char type[10], direction[10];
    struct conv c;
    *j = (struct job){0};
    if (sscanf(line, "conv %dx%dx%dx%d %d %dx%*d/%d %9s %9s", &c.n, &c.h, &c.w, &c.c, &c.k, &c.r, &c.stride, type,
               direction) != 9)
        return bad("no convolution: %.100s", line);
    c.pad = c.r / 2;
    j->conv = c;
    j->type = strcmp(type, type_names[BF16]) == 0 ? BF16 : F32;
    while (j->direction < WEIGHT_GRADIENT && strcmp(direction, direction_names[j->direction]) != 0)
        j->direction++;
    return 0;
}

static int compare_config(const char *line, const struct job *j, int *last, struct group *groups, int *count,
                          int multiprocessors, bool *in_order)
{
    long long engine, workspace;
    char knobs[200];
    if (sscanf(line, "%lld %199s %lld", &engine, knobs, &workspace) != 3)
        return bad("no configuration: %.100s", line);
    struct group *g = group_of(groups, count, j, engine);
    if (g == NULL)
        return bad("more than %d engines", GROUPS);
    int i = 0;
    while (i < j->configs &&
           (j->config[i].id != engine || strcmp(j->config[i].knobs[0] != 0 ? j->config[i].knobs : "-", knobs) != 0))
        i++;
    g->configs++;
    if (i == j->configs) {
        g->refused++;
        return 0;
    }
    const struct config *c = &j->config[i];
    *in_order &= i > *last;
    *last = i;
    g->equal += c->workspace == workspace;
    g->smaller += c->workspace < workspace;
    g->above += workspace > bound(c, multiprocessors);
    g->least = MIN2(g->least, workspace - c->workspace);
    g->most = MAX2(g->most, workspace - c->workspace);
    return 0;
}

static int compare_report(const struct group *groups, int count, int lists, int ordered)
{
    int configs = 0, refused = 0, equal = 0, above = 0;
    text("against the card's answers in %s.\n\n| type | direction | engine | configurations | not listed without a "
         "card "
         "| equal | card less described, bytes | above the bound |\n|---|---|---|---|---|---|---|---|\n",
         card_file);
    for (int i = 0; i < count; i++) {
        const struct group *g = &groups[i];
        configs += g->configs;
        refused += g->refused;
        equal += g->equal;
        above += g->above;
        row("{\"part\":\"workspaces-offline\",\"against\":\"card\",\"type\":\"%s\",\"direction\":\"%s\",\"engine\":%"
            "lld,"
            "\"configs\":%d,\"not_listed\":%d,\"equal\":%d,\"smaller\":%d,\"above\":%d,\"least\":%lld,\"most\":%lld}",
            type_names[g->type], direction_names[g->direction], g->engine, g->configs, g->refused, g->equal, g->smaller,
            g->above, (long long)g->least, (long long)g->most);
        if (g->equal < g->configs)
            text("| %s | %s | %lld | %d | %d | %d | %lld to %lld | %d |\n", type_names[g->type],
                 direction_names[g->direction], g->engine, g->configs, g->refused, g->equal, (long long)g->least,
                 (long long)g->most, g->above);
    }
    text(
        "\n%d configurations: %d equal, %d differ and are within the bound, %d above it, %d not listed without a card. "
        "Engines whose figures are all equal are not shown. %d of %d lists keep the card's order.\n",
        configs, equal, configs - equal - above - refused, above, refused, ordered, lists);
    row("{\"part\":\"workspaces-offline\",\"against\":\"card\",\"configs\":%d,\"equal\":%d,\"above\":%d,\"not_listed\":"
        "%d,\"lists\":%d,\"in_order\":%d}",
        configs, equal, above, refused, lists, ordered);
    if (configs == 0)
        return bad("%.200s has no configuration", card_file);
    return above == 0 && ordered == lists ? 0
                                          : bad("%d above the bound, %d of %d lists in order", above, ordered, lists);
}

static int compare_with_card(const struct asker *a, int multiprocessors)
{
    static struct group groups[GROUPS];
    static struct job j;
    char line[400];
    int count = 0, lists = 0, ordered = 0, last = -1, result = 0;
    bool in_order = true;
    FILE *f = fopen(card_file, "r");
    if (f == NULL)
        return bad("%.200s: %s", card_file, strerror(errno));
    while (result == 0 && fgets(line, sizeof line, f) != NULL) {
        if (line[0] == '#')
            continue;
        if (strncmp(line, "conv ", 5) != 0) {
            result = lists == 0 ? bad("%.200s: a configuration without a convolution", card_file)
                                : compare_config(line, &j, &last, groups, &count, multiprocessors, &in_order);
            continue;
        }
        ordered += lists > 0 && in_order;
        job_free(&j);
        if (read_job(line, &j) != 0 || job_graph(&j, a) != 0 || job_ask(&j, a, CUDNN_HEUR_MODE_A) != 0)
            result = -1;
        lists++;
        last = -1;
        in_order = true;
    }
    fclose(f);
    job_free(&j);
    ordered += lists > 0 && in_order;
    return result != 0 ? result : compare_report(groups, count, lists, ordered);
}

int part_workspaces_offline(void)
{
    if (card_file[0] == 0)
        return ask_described();
    const char *source = "";
    struct asker a = {0};
    int multiprocessors = 0;
    TRY(open_dnn());
    TRY(described_device(&a.prop, &source, &multiprocessors));
    text("cuDNN %zu, described by %s, ", q_cudnnGetVersion(), source);
    return compare_with_card(&a, multiprocessors);
}
