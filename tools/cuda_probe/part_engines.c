/* part_engines.c: every engine for the convolutions of two networks. */
#include "convolution.h"

enum { FIRST_ROUND = 5 }; /* of each list are timed for every graph, before the rest is */
struct layer {
    struct conv conv;
    int times;
};
static const struct layer resnet50[] = {
    /* keras.applications: the stride is in the first 1 x 1 of a stage and in its shortcut */
    {{256, 224, 224, 3, 64, 7, 2, 3}, 1},   {{256, 56, 56, 64, 64, 1, 1, 0}, 1},
    {{256, 56, 56, 64, 256, 1, 1, 0}, 4},   {{256, 56, 56, 64, 64, 3, 1, 1}, 3},
    {{256, 56, 56, 256, 64, 1, 1, 0}, 2},   {{256, 56, 56, 256, 512, 1, 2, 0}, 1},
    {{256, 56, 56, 256, 128, 1, 2, 0}, 1},  {{256, 28, 28, 128, 128, 3, 1, 1}, 4},
    {{256, 28, 28, 128, 512, 1, 1, 0}, 4},  {{256, 28, 28, 512, 128, 1, 1, 0}, 3},
    {{256, 28, 28, 512, 1024, 1, 2, 0}, 1}, {{256, 28, 28, 512, 256, 1, 2, 0}, 1},
    {{256, 14, 14, 256, 256, 3, 1, 1}, 6},  {{256, 14, 14, 256, 1024, 1, 1, 0}, 6},
    {{256, 14, 14, 1024, 256, 1, 1, 0}, 5}, {{256, 14, 14, 1024, 2048, 1, 2, 0}, 1},
    {{256, 14, 14, 1024, 512, 1, 2, 0}, 1}, {{256, 7, 7, 512, 512, 3, 1, 1}, 3},
    {{256, 7, 7, 512, 2048, 1, 1, 0}, 3},   {{256, 7, 7, 2048, 512, 1, 1, 0}, 2}};
static const struct layer s9[] = {{{32, 128, 128, 3, 256, 3, 1, 1}, 1},  {{32, 128, 128, 256, 256, 3, 1, 1}, 1},
                                  {{32, 64, 64, 256, 512, 3, 1, 1}, 1},  {{32, 64, 64, 512, 512, 3, 1, 1}, 1},
                                  {{32, 32, 32, 512, 1024, 3, 1, 1}, 1}, {{32, 32, 32, 1024, 1024, 3, 1, 1}, 1}};

static int order_jobs(const void *a, const void *b) /* bf16 first, then by work, so that a deadline costs little */
{
    const struct job *x = a, *y = b;
    double fx = conv_flops(&x->conv) * x->times, fy = conv_flops(&y->conv) * y->times;
    return x->type != y->type ? x->type - y->type : (fx < fy) - (fx > fy);
}

static int list_networks(struct job *jobs)
{
    int n = 0;
    for (int i = 0; i < COUNT(resnet50); i++)
        for (int d = 0; d < 3; d++)
            if (i > 0 || d != DATA_GRADIENT) /* nobody needs the gradient of the images */
                jobs[n++] = (struct job){.net = "ResNet50",
                                         .conv = resnet50[i].conv,
                                         .times = resnet50[i].times,
                                         .direction = d,
                                         .type = BF16};
    for (int t = BF16; t <= F32; t++)
        for (int i = 0; i < COUNT(s9); i++)
            for (int d = 0; d < 3; d++)
                if (i > 0 || d != DATA_GRADIENT)
                    jobs[n++] = (struct job){.net = "S9", .conv = s9[i].conv, .times = 1, .direction = d, .type = t};
    for (int i = 0; i < n; i++) {
        jobs[i].plans_a = jobs[i].plans_b = FIRST_ROUND;
        jobs[i].extra = 2;
    }
    qsort(jobs, (size_t)n, sizeof *jobs, order_jobs);
    return n;
}

static bool fits_deterministic(const struct config *c)
{
    return !c->nondeterministic;
}

static bool fits_no_tf32(const struct config *c)
{
    return !c->tf32;
}

static struct config *first_of(struct job *j, int by_b)
{
    struct config *best = NULL;
    for (int i = 0; i < j->configs; i++) {
        struct config *c = &j->config[i];
        int rank = by_b ? c->rank_b : c->rank_a, so_far = best == NULL ? MAX_CONFIGS
                                                          : by_b       ? best->rank_b
                                                                       : best->rank_a;
        if (c->us > 0 && rank >= 0 && rank < so_far)
            best = c;
    }
    return best;
}

enum { FIRST_A, FIRST_B, BEST_FIVE, BEST_ALL, BEST_DETERMINISTIC, BEST_SAFE, BEST_STRICT, BEST_STRICT_DET, CHOICES };
static const char *const choice_names[CHOICES] = {"first of mode A",    "first of mode B",
                                                  "best of A's five",   "best timed",
                                                  "best deterministic", "best deterministic, precompiled",
                                                  "best without TF32",  "best without TF32, deterministic"};

static struct config *choose(struct job *j, int choice)
{
    static bool (*const fits[CHOICES])(const struct config *c) = {
        NULL, NULL, NULL, NULL, fits_deterministic, fits_safe, fits_no_tf32, fits_strict};
    return choice <= FIRST_B ? first_of(j, choice) : fastest(j, fits[choice], choice == BEST_FIVE ? 5 : 0);
}

static void engines_sums(struct job *jobs, int n)
{
    static const struct {
        const char *net;
        int type;
    } lines[] = {{"ResNet50", BF16}, {"S9", BF16}, {"S9", F32}};
    text("\nSum over a network, one step, milliseconds (missing: graphs without such an engine, not in the sum).\n\n"
         "| network | choice | forward | data | weights | all | missing | largest workspace, MiB |\n"
         "|---|---|---|---|---|---|---|---|\n");
    for (int l = 0; l < COUNT(lines); l++)
        for (int k = 0; k < (lines[l].type == F32 ? CHOICES : BEST_STRICT); k++) {
            double ms[3] = {0};
            int64_t largest = 0;
            int missing = 0;
            for (int i = 0; i < n; i++) {
                struct job *j = &jobs[i];
                if (strcmp(j->net, lines[l].net) != 0 || j->type != lines[l].type)
                    continue;
                struct config *c = choose(j, k);
                if (c == NULL) {
                    missing++;
                    continue;
                }
                ms[j->direction] += 1e-3 * c->us * j->times;
                largest = MAX2(largest, c->plan_workspace);
            }
            double all = ms[0] + ms[1] + ms[2];
            text("| %s %s | %s | %.3f | %.3f | %.3f | %.3f | %d | %.1f |\n", lines[l].net, type_names[lines[l].type],
                 choice_names[k], ms[0], ms[1], ms[2], all, missing, (double)largest / (double)MIB);
            row("{\"part\":\"engines\",\"sum\":\"%s\",\"type\":\"%s\",\"choice\":\"%s\",\"forward_ms\":%.4f,\"data_"
                "ms\":%.4f,"
                "\"weights_ms\":%.4f,\"all_ms\":%.4f,\"missing\":%d,\"workspace_bytes\":%lld}",
                lines[l].net, type_names[lines[l].type], choice_names[k], ms[0], ms[1], ms[2], all, missing,
                (long long)largest);
        }
}

static const char *first_five(const struct job *j, char *buffer, size_t size)
{
    size_t used = 0;
    buffer[0] = 0;
    for (int rank = 0; rank < FIRST_ROUND; rank++)
        for (int i = 0; i < j->configs && used < size; i++) {
            const struct config *c = &j->config[i];
            if (c->rank_a != rank)
                continue;
            used +=
                (size_t)snprintf(buffer + used, size - used, "%s%lld%s%s%s: ", rank > 0 ? "; " : "", (long long)c->id,
                                 c->compiled ? "c" : "", c->nondeterministic ? "n" : "", c->tf32 ? "t" : "");
            if (used < size && c->us > 0)
                used += (size_t)snprintf(buffer + used, size - used, "%.1f", c->us);
            if (used < size && c->us > 0 && c->plan_workspace >= (int64_t)MIB / 10)
                used += (size_t)snprintf(buffer + used, size - used, ", %.1f", (double)c->plan_workspace / (double)MIB);
        }
    return buffer;
}

int part_engines(void)
{
    struct job *jobs = calloc(128, sizeof *jobs);
    char trouble[600] = "";
    if (jobs == NULL)
        return bad("out of memory");
    double start = now_s();
    int n = list_networks(jobs), type = BF16, timed = 0, result = 0;
    struct runner r;
    TRY(card_open(2048 * MIB, 2048 * MIB, 6144 * MIB));
    TRY(prepare_all(jobs, n, NULL, 60));
    for (int i = 0; i < 2 * n && result == 0; i++) {
        struct job *j = &jobs[i % n];
        if (j->type != type) {
            type = j->type;
            result = fill_random(card.in, card.in_bytes, type == BF16, 2);
        }
        if (result == 0 && j->ok)
            result = job_time(j, &r, i < n ? FIRST_ROUND : MAX_CONFIGS, start + (i < n ? 110 : 140));
    }
    if (result != 0) /* the tables of what there is come first */
        snprintf(trouble, sizeof trouble, "%s", why);
    text("First five of mode A: engine, microseconds, workspace in MiB where there is one; c compiled at run time, n "
         "not "
         "deterministic, t TF32.\n\n| network | input, filters | type | direction | times | listed A, B, timed | first "
         "five "
         "of A | best, us | TFLOP/s | its engine, MiB | best deterministic, us | MiB |\n"
         "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < n; i++) {
        struct job *j = &jobs[i];
        char name[100], five[400];
        job_name(j, name, sizeof name);
        int listed_a = 0, listed_b = 0, runs = 0;
        for (int k = 0; k < j->configs; k++) {
            struct config *c = &j->config[k];
            listed_a += c->rank_a >= 0;
            listed_b += c->rank_b >= 0;
            runs += c->us > 0;
            if (c->us > 0 || c->note[0] != 0)
                row("{\"part\":\"engines\",\"net\":\"%s\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\","
                    "\"times\":%d,"
                    "\"engine\":%lld,\"knobs\":\"%s\",\"rank_a\":%d,\"rank_b\":%d,\"us\":%.2f,\"workspace_bytes\":%lld,"
                    "\"config_workspace_bytes\":%lld,\"deterministic\":%d,\"compiled\":%d,\"tf32\":%d,\"build_s\":%.3f,"
                    "\"note\":\"%s\"}",
                    j->net, name, type_names[j->type], direction_names[j->direction], j->times, (long long)c->id,
                    c->knobs, c->rank_a, c->rank_b, c->us, (long long)c->plan_workspace, (long long)c->workspace,
                    !c->nondeterministic, c->compiled, c->tf32, c->build_s, c->note);
        }
        struct config *best = fastest(j, NULL, 0), *safe = fastest(j, fits_deterministic, 0);
        if (best == NULL) {
            if (j->ok)
                snprintf(j->error, sizeof j->error, "no plan was timed");
            text("| %s | %s | %s | %s | %d | %d, %d, 0 | | | | %s | | |\n", j->net, name, type_names[j->type],
                 direction_names[j->direction], j->times, listed_a, listed_b, j->error);
            row("{\"part\":\"engines\",\"net\":\"%s\",\"shape\":\"%s\",\"type\":\"%s\",\"direction\":\"%s\",\"error\":"
                "\"%s\"}",
                j->net, name, type_names[j->type], direction_names[j->direction], j->error);
            continue;
        }
        timed++;
        text("| %s | %s | %s | %s | %d | %d, %d, %d | %s | %.1f | %.0f | %lld, %.1f%s%s%s | %.1f | %.1f |\n", j->net,
             name, type_names[j->type], direction_names[j->direction], j->times, listed_a, listed_b, runs,
             first_five(j, five, sizeof five), best->us, 1e-6 * conv_flops(&j->conv) / best->us, (long long)best->id,
             (double)best->plan_workspace / (double)MIB, best->compiled ? ", compiled" : "", best->tf32 ? ", TF32" : "",
             best->nondeterministic ? ", not deterministic" : "", safe != NULL ? safe->us : NAN,
             safe != NULL ? (double)safe->plan_workspace / (double)MIB : NAN);
    }
    engines_sums(jobs, n);
    row("{\"part\":\"engines\",\"graphs\":%d,\"timed\":%d,\"seconds\":%.1f}", n, timed, now_s() - start);
    text("\n%d of %d graphs timed, %.0f s.\n", timed, n, now_s() - start);
    if (result != 0)
        return bad("%s", trouble);
    return timed == n ? 0 : bad("%d of %d graphs timed", timed, n);
}
