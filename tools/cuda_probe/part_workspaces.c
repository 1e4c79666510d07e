/* part_workspaces.c: drawn convolutions asked of the card, or of a described device. */
#include "convolution.h"

enum { DRAWN = 200 };

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
    int refused = 0;
    draw_convolutions(jobs);
    for (int i = 0; i < DRAWN; i++) {
        struct job *j = &jobs[i];
        j->ok = job_graph(j, a) == 0 && job_ask(j, a, CUDNN_HEUR_MODE_A) == 0;
        if (!j->ok)
            snprintf(j->error, sizeof j->error, "%.290s", why);
        refused += !j->ok;
    }
    return refused;
}

/* In the form that workspaces-offline reads (--card). */
static int write_answers(const struct job *jobs, const char *who, const char *path)
{
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return bad("%.200s: %s", path, strerror(errno));
    fprintf(f, "# What cuDNN %zu answers, mode A; %s. By tools/cuda-probe.\n", q_cudnnGetVersion(), who);
    for (int i = 0; i < DRAWN; i++) {
        const struct job *j = &jobs[i];
        char name[100];
        fprintf(f, "conv %s %s %s\n", job_name(j, name, sizeof name), type_names[j->type],
                direction_names[j->direction]);
        for (int k = 0; k < j->configs; k++)
            fprintf(f, "%lld %s %lld\n", (long long)j->config[k].id,
                    j->config[k].knobs[0] != 0 ? j->config[k].knobs : "-", (long long)j->config[k].workspace);
    }
    bool failed = ferror(f) != 0;
    return fclose(f) != 0 || failed ? bad("%.200s: %s", path, strerror(errno)) : 0;
}

/* Asks for the drawn convolutions and keeps the answers in a file; builds the first plans of each. */
static int ask_and_keep(const struct asker *a, const char *part, const char *who, const char *path)
{
    static struct job jobs[DRAWN];
    int listed = 0, compiled = 0, built = 0, differ = 0;
    double start = now_s();
    int refused = ask_drawn(jobs, a);
    double seconds = now_s() - start;
    TRY(write_answers(jobs, who, path));
    for (int i = 0; i < DRAWN; i++) {
        struct job *j = &jobs[i];
        build_first(j, a, 2, 0, fits_precompiled);
        for (int k = 0; k < j->configs; k++) {
            const struct config *c = &j->config[k];
            listed++;
            compiled += c->compiled;
            built += c->built;
            differ += c->built && c->plan_workspace != c->workspace;
        }
        if (!j->ok)
            row("{\"part\":\"%s\",\"refused\":%d,\"error\":\"%s\"}", part, i, j->error);
        job_free(j);
    }
    text("cuDNN %zu, %s: %d convolutions, %d refused; %d configurations in %.2f s, %d of them compiled at run time; %d "
         "plans built, %d with another workspace than their configuration.\n",
         q_cudnnGetVersion(), who, DRAWN, refused, listed, seconds, compiled, built, differ);
    row("{\"part\":\"%s\",\"asked\":\"%s\",\"lists\":%d,\"refused\":%d,\"configs\":%d,\"compiled\":%d,\"plans\":%d,"
        "\"differ\":%d,\"seconds\":%.2f}",
        part, who, DRAWN, refused, listed, compiled, built, differ, seconds);
    return refused == 0 && differ == 0 ? 0 : bad("%d graphs refused, %d plans differ", refused, differ);
}

int ask_described(void)
{
    const char *source = "";
    struct asker a = {0};
    char path[1200];
    TRY(open_dnn());
    TRY(described_device(&a.prop, &source, NULL));
    snprintf(path, sizeof path, "%s/described-convolutions.txt", out_dir);
    return ask_and_keep(&a, "workspaces-offline", source, path);
}

/* The card's answers; then a process that sees no card, told about it by the JSON alone, compares its own with them. */
int part_workspaces(void)
{
    char path[1200], command[5000];
    TRY(card_open(MIB, MIB, 0));
    struct asker a = {.handle = card.handle};
    snprintf(path, sizeof path, "%s/card-convolutions.txt", out_dir);
    TRY(ask_and_keep(&a, "workspaces", "on the card", path));
    snprintf(command, sizeof command, "CUDA_VISIBLE_DEVICES=-1 '%s' '%s' workspaces-offline --card '%s' %s%s%s",
             self_path, out_dir, path, prop_file[0] != 0 ? "--prop '" : "", prop_file, prop_file[0] != 0 ? "'" : "");
    return system(command) == 0 ? 0 : bad("the process without a card did not pass (see workspaces-offline)");
}
