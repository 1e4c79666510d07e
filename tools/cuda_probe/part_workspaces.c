/* part_workspaces.c: workspaces by the card and by a described device. */
#include "convolution.h"

enum { DRAWN = 40 };

static void draw_convolutions(struct job jobs[DRAWN])
{
    static const int channels[] = {3, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 512, 1024};
    static const int batches[] = {1, 4, 8, 16, 32, 64}, sides[] = {7, 14, 15, 28, 33, 56, 64, 112, 128};
    static const int filters[] = {1, 3, 3, 3, 5, 7};
    random_state = 20260101;
    for (int i = 0; i < DRAWN; i++) {
        struct conv c = {.n = batches[random_next() % COUNT(batches)], .h = sides[random_next() % COUNT(sides)]};
        c.w = c.h;
        c.c = channels[random_next() % COUNT(channels)];
        c.k = channels[1 + random_next() % (COUNT(channels) - 1)];
        c.r = filters[random_next() % COUNT(filters)];
        c.stride = 1 + (int)(random_next() % 3 == 0);
        c.pad = c.r / 2;
        jobs[i] = (struct job){.conv = c, .direction = i % 3, .type = i / 3 % 2};
    }
}

static int ask_drawn(struct job *jobs, const struct asker *a)
{
    for (int i = 0; i < DRAWN; i++) {
        struct job *j = &jobs[i];
        if (job_graph(j, a) != 0 || job_ask(j, a, CUDNN_HEUR_MODE_A) != 0)
            snprintf(j->error, sizeof j->error, "%.290s", why);
        else
            j->ok = true;
    }
    return 0;
}

/* With a card hidden or absent. Lines for a parent process go to stdout, if asked for. */
int offline(int lines)
{
    static struct job jobs[DRAWN];
    const char *source = "";
    struct asker a = {0};
    int listed = 0, compiled = 0, failed = 0, differ = 0, built = 0;
    TRY(open_dnn());
    TRY(described_device(&a.prop, &source, NULL));
    if (lines)
        printf("source %s; cuDNN %zu\n", source, q_cudnnGetVersion());
    draw_convolutions(jobs);
    double start = now_s();
    TRY(ask_drawn(jobs, &a));
    double seconds = now_s() - start;
    if (!lines)
        text("Described by: %s. cuDNN %zu.\n\n| input, filters | type | direction | listed | first engine | its "
             "workspace, bytes | "
             "its plan's | largest |\n|---|---|---|---|---|---|---|---|\n",
             source, q_cudnnGetVersion());
    for (int i = 0; i < DRAWN; i++) {
        struct job *j = &jobs[i];
        char name[100];
        int64_t largest = 0;
        failed += !j->ok;
        for (int k = 0; k < j->configs; k++) {
            const struct config *c = &j->config[k];
            if (lines)
                printf("config %d %lld %lld %d %s\n", i, (long long)c->id, (long long)c->workspace, c->compiled,
                       c->knobs[0] != 0 ? c->knobs : "-");
            largest = MAX2(largest, c->workspace);
            compiled += c->compiled;
            listed++;
        }
        if (lines)
            continue;
        build_first(j, &a, 1, 0, fits_precompiled);
        const struct config *first = j->configs > 0 ? &j->config[0] : NULL;
        long long plan = -1;
        for (int k = 0; k < j->configs; k++)
            if (j->config[k].built) {
                built++;
                differ += j->config[k].plan_workspace != j->config[k].workspace;
                plan = k == 0 ? (long long)j->config[k].plan_workspace : -1;
            }
        text("| %s | %s | %s | %d | %lld | %lld | %lld | %lld |%.100s\n", job_name(j, name, sizeof name),
             type_names[j->type], direction_names[j->direction], j->configs, first != NULL ? (long long)first->id : -1,
             first != NULL ? (long long)first->workspace : -1, plan, (long long)largest, j->error);
        row("{\"part\":\"workspaces-offline\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\",\"listed\":%d,"
            "\"engine\":%lld,\"workspace_bytes\":%lld,\"largest_bytes\":%lld,\"error\":\"%s\"}",
            name, type_names[j->type], direction_names[j->direction], j->configs,
            first != NULL ? (long long)first->id : -1, first != NULL ? (long long)first->workspace : -1,
            (long long)largest, j->error);
    }
    if (!lines) {
        text("\n%d configurations, %d of them compiled at run time; %d plans built without a card, %d with another "
             "workspace than "
             "their configuration; %.2f s for %d lists.\n",
             listed, compiled, built, differ, seconds, DRAWN);
        row("{\"part\":\"workspaces-offline\",\"listed\":%d,\"compiled\":%d,\"plans\":%d,\"differ\":%d,\"seconds\":%."
            "2f}",
            listed, compiled, built, differ, seconds);
    }
    for (int i = 0; i < DRAWN; i++)
        job_free(&jobs[i]);
    return failed == 0 ? 0 : bad("%d of %d graphs were refused", failed, DRAWN);
}

int part_workspaces(void)
{
    static struct job jobs[DRAWN];
    static int at[DRAWN];
    char command[4000], line[600];
    int same = 0, differ = 0, lists = 0, extra = 0, plans = 0, plans_differ = 0;
    TRY(card_open(MIB, MIB, 0));
    struct asker a = {.handle = card.handle};
    draw_convolutions(jobs);
    TRY(ask_drawn(jobs, &a));
    /* the other side: a process that sees no card, told about it by the JSON alone */
    snprintf(command, sizeof command, "CUDA_VISIBLE_DEVICES=-1 '%s' --offline-lines '%s' '%s'", self_path, out_dir,
             prop_file);
    FILE *child = popen(command, "r");
    if (child == NULL)
        return bad("popen: %s", strerror(errno));
    bool list_differs[DRAWN] = {0};
    while (fgets(line, sizeof line, child) != NULL) {
        int i, compiled;
        long long id, workspace;
        char knobs[300], name[100];
        if (strncmp(line, "source ", 7) == 0)
            text(
                "Described to the process without a card by: %s\n"
                "| input, filters | type | direction | rank | on the card: engine, bytes, knobs | without: the same |\n"
                "|---|---|---|---|---|---|\n",
                line + 7);
        if (sscanf(line, "config %d %lld %lld %d %299s", &i, &id, &workspace, &compiled, knobs) != 5 || i < 0 ||
            i >= DRAWN)
            continue;
        struct job *j = &jobs[i];
        const struct config *c = at[i] < j->configs ? &j->config[at[i]] : NULL;
        int rank = at[i]++;
        if (c == NULL) {
            extra++;
            list_differs[i] = true;
            continue;
        }
        bool equal = c->id == id && c->workspace == workspace && strcmp(c->knobs[0] != 0 ? c->knobs : "-", knobs) == 0;
        same += equal;
        differ += !equal;
        if (!equal && !list_differs[i]) {
            text("| %s | %s | %s | %d | %lld, %lld, %s | %lld, %lld, %s |\n", job_name(j, name, sizeof name),
                 type_names[j->type], direction_names[j->direction], rank, (long long)c->id, (long long)c->workspace,
                 c->knobs, id, workspace, knobs);
            row("{\"part\":\"workspaces\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\",\"rank\":%d,\"card\":[%"
                "lld,%lld],"
                "\"described\":[%lld,%lld],\"card_knobs\":\"%s\",\"described_knobs\":\"%s\"}",
                name, type_names[j->type], direction_names[j->direction], rank, (long long)c->id,
                (long long)c->workspace, id, workspace, c->knobs, knobs);
        }
        list_differs[i] |= !equal;
    }
    int status = pclose(child), refused = 0;
    for (int i = 0; i < DRAWN; i++) {
        struct job *j = &jobs[i];
        refused += !j->ok;
        list_differs[i] |= at[i] < j->configs;
        extra += MAX2(0, j->configs - at[i]);
        lists += !list_differs[i];
        build_first(j, &a, 2, 0, fits_precompiled);
        for (int k = 0; k < j->configs; k++)
            if (j->config[k].built) {
                plans++;
                plans_differ += j->config[k].plan_workspace != j->config[k].workspace;
            }
        char name[100];
        row("{\"part\":\"workspaces\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\",\"listed\":%d,\"same_"
            "list\":%d,"
            "\"error\":\"%s\"}",
            job_name(j, name, sizeof name), type_names[j->type], direction_names[j->direction], j->configs,
            !list_differs[i], j->error);
    }
    text("\n%d of %d lists equal (engine, knobs and workspace, in order); %d configurations equal, %d differ, %d on "
         "one side only; "
         "%d plans built on the card, %d with another workspace than their configuration. The table shows the first "
         "difference "
         "of a list.\n",
         lists, DRAWN, same, differ, extra, plans, plans_differ);
    row("{\"part\":\"workspaces\",\"lists_equal\":%d,\"lists\":%d,\"configs_equal\":%d,\"configs_differ\":%d,\"one_"
        "side\":%d,"
        "\"plans\":%d,\"plans_differ\":%d}",
        lists, DRAWN, same, differ, extra, plans, plans_differ);
    for (int i = 0; i < DRAWN; i++)
        job_free(&jobs[i]);
    if (status != 0)
        return bad("the process without a card failed (its lines are above, on stderr)");
    return lists == DRAWN && refused == 0 ? 0 : bad("%d of %d lists equal, %d graphs refused", lists, DRAWN, refused);
}
