/*
 * train_cli.c: options and progress of train, evaluate and predict; what they found is train_result.c's to say.
 *
 * The progress line is the one people know from Keras, with a memory bar beside it:
 *
 *     Epoch 2/5
 *     45/57 ━━━━━━━━━━━━━━━╸━━━━ 1s 21ms/step - accuracy: 0.9312 - loss: 0.2273  mem ▕███████▏ 286 MiB of 300 MiB
 */
#include "cli/train_cli.h"

#include "base/error.h"
#include "base/os.h"
#include "base/visible.h"
#include "base/words.h"
#include "cli/count_alloc.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- options ---------------------------------------------------------------------------------------------- */

static void read_shape(train_cli *cli)
{
    mf_shape shape = {0};
    if (cli->input_shape && mf_words_shape(cli->input_shape, strlen(cli->input_shape), &shape))
        memcpy(cli->o.input_shape, shape.dim, sizeof shape.dim);
    cli->o.input_rank = shape.rank;
}

static int read_dims(const cli_command *command, train_cli *cli)
{
    for (size_t i = 0; i < cli->dims.count; i++) {
        memfit_error err;
        size_t n;
        if (mf_words_dim(cli->dims.items[i], &n, &cli->dim_values[i], &err) != MEMFIT_OK)
            return cli_usage_error(command, "%s", err.message);
        if (n >= sizeof cli->dim_texts[i])
            return cli_usage_error(command, "--dim %s: the name is too long", cli->dims.items[i]);
        snprintf(cli->dim_texts[i], sizeof cli->dim_texts[i], "%.*s", (int)n, cli->dims.items[i]);
        cli->dim_names[i] = cli->dim_texts[i];
    }
    cli->o.dim_names = cli->dim_names;
    cli->o.dim_values = cli->dim_values;
    cli->o.dim_count = cli->dims.count;
    return CLI_DONE;
}

#define ANY_MEMORY (UINT64_C(1) << 60)

static bool is_card(const train_cli *cli)
{
    return cli->device && !mf_words_cpu(cli->device);
}

/* Of the card that is named, or of the machine. */
static uint64_t whole_memory(const train_cli *cli)
{
    enum { MOST_DEVICES = 64 };
    memfit_device_info list[MOST_DEVICES] = {{0}};
    size_t count = 0;
    char name[32];
    if (!is_card(cli))
        return mf_os_total_memory();
    const char *number = strchr(cli->device, ':');
    snprintf(name, sizeof name, "cuda:%s", number ? number + 1 : "0");
    if (memfit_device_list(list, sizeof *list, MOST_DEVICES, &count, NULL) != MEMFIT_OK)
        return 0;
    for (size_t i = 0; i < count && i < MOST_DEVICES; i++)
        if (strcmp(list[i].name, name) == 0)
            return list[i].total_bytes;
    return 0;
}

/* --memory, and on cpu --host-memory, which bounds the same process: the smaller holds. */
static int read_limit(const cli_command *command, train_cli *cli)
{
    const char *texts[] = {cli->memory, cli->host_memory}, *names[] = {"--memory", "--host-memory"};
    char asked[24], there[24];
    cli->whole = cli->memory || cli->memory_file ? whole_memory(cli) : mf_os_total_memory();
    for (int i = 0; i < 2; i++) {
        uint64_t bytes, whole = i ? mf_os_total_memory() : cli->whole;
        memfit_error err;
        if (!texts[i])
            continue;
        if (!whole) /* opening the card will say what is wrong; a word that is no size is wrong in any case */
            whole = ANY_MEMORY;
        if (memfit_size_parse(texts[i], whole, &bytes, &err) != MEMFIT_OK)
            return cli_usage_error(command, "%s: %s\n%s", names[i], err.message, err.hint);
        if (!bytes)
            return cli_usage_error(command, "%s %s: nothing fits into that", names[i], texts[i]);
        if (bytes > whole && bytes - whole < mf_os_page_bytes())
            bytes = whole; /* the kernel keeps a cgroup's limit in whole pages: it is the same one */
        if (bytes > whole)
            return cli_usage_error(
                command, "%s: a limit of %s is more than %s has: %s\nleave it out to use what is there", names[i],
                memfit_size_format(bytes, asked, sizeof asked), i || !is_card(cli) ? "this machine" : cli->device,
                memfit_size_format(whole, there, sizeof there));
        if (!cli->o.memory_bytes || bytes < cli->o.memory_bytes)
            cli->o.memory_bytes = bytes;
    }
    return CLI_DONE;
}

static int read_device(const cli_command *command, train_cli *cli)
{
    cli->o.device = cli->device;
    if (cli->tf32 && strcmp(cli->tf32, "on") != 0 && strcmp(cli->tf32, "off") != 0)
        return cli_usage_error(command, "--tf32 %s: must be on or off", cli->tf32);
    cli->o.tf32 = cli->tf32 && strcmp(cli->tf32, "on") == 0;
    if (cli->o.tf32 && (!cli->device || mf_words_cpu(cli->device)))
        cli_note(&cli->common, "--tf32 is about cards: on cpu products are float32");
    if (cli->o.allow_nondeterministic && (!cli->device || mf_words_cpu(cli->device)))
        cli_note(&cli->common, "--allow-nondeterministic is about cards: on cpu every sum has one order, at no cost");
    const char *offload = cli->offload;
    if (offload && strcmp(offload, "off") != 0 && strcmp(offload, "optimizer") != 0 && strcmp(offload, "auto") != 0)
        return cli_usage_error(command, "--offload %s: must be off, optimizer or auto", offload);
    cli->o.offload = offload;
    if (!cli->device || mf_words_cpu(cli->device) || !cli->host_memory)
        return CLI_DONE;
    return cli_unsupported(command, "--host-memory beside a card is not built yet",
                           "without it the host's memory is not limited");
}

static int read_prefetch(const cli_command *command, train_cli *cli)
{
    if (!cli->prefetch || strcmp(cli->prefetch, "auto") == 0)
        return CLI_DONE;
    char *end;
    cli->o.prefetch = strtoll(cli->prefetch, &end, 10);
    if (*end || end == cli->prefetch || cli->o.prefetch < 0 || cli->o.prefetch > 1000)
        return cli_usage_error(command, "--prefetch %s: must be auto or a number of batches up to 1000", cli->prefetch);
    return CLI_DONE;
}

static int read_images(const cli_command *command, train_cli *cli)
{
    if (cli->image_size) {
        mf_shape size;
        if (!mf_words_shape(cli->image_size, strlen(cli->image_size), &size) || size.rank != 2 || size.dim[0] > 16384 ||
            size.dim[1] > 16384)
            return cli_usage_error(command, "--image-size %s: must be height and width, such as 224,224",
                                   cli->image_size);
        cli->o.image_height = size.dim[0];
        cli->o.image_width = size.dim[1];
    }
    if (cli->image_type && strcmp(cli->image_type, "uint8") != 0 && strcmp(cli->image_type, "float32") != 0)
        return cli_usage_error(command, "--image-type %s: must be float32 or uint8", cli->image_type);
    cli->o.image_bytes = cli->image_type && cli->image_type[0] == 'u';
    if (cli->image_decode && strcmp(cli->image_decode, "full") != 0 && strcmp(cli->image_decode, "scaled") != 0)
        return cli_usage_error(command, "--image-decode %s: must be full or scaled", cli->image_decode);
    cli->o.image_scaled = cli->image_decode && cli->image_decode[0] == 's';
    memfit_error err;
    if (cli->decode_memory &&
        memfit_size_parse(cli->decode_memory, mf_os_total_memory(), &cli->o.decode_bytes, &err) != MEMFIT_OK)
        return cli_usage_error(command, "--decode-memory: %s\n%s", err.message, err.hint);
    cli->o.workers = (unsigned)cli->workers;
    return CLI_DONE;
}

void train_cli_short_spin(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    if (setenv("GOMP_SPINCOUNT", "1000", 1) == 0)
        execv("/proc/self/exe", argv - 1); /* argv begins with the command; the program's own name is before it */
}

/* Files are mapped. Each piece of data is read after a look at the file's length; this is for the instant between, and
 * for disks that fail. */
static void mapped_file_lost(int number)
{
    static const char text[] = "\nmemfit: a file in use became shorter while it was read, or its disk failed\n"
                               "  checkpoints written before are whole\n";
    (void)number;
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(CLI_BAD_INPUT);
}

/* At the start a file that says nothing is a slip; later it may be half written. */
static int read_memory_file(const cli_command *command, train_cli *cli)
{
    char text[64];
    uint64_t bytes;
    memfit_error err;
    if (!mf_os_read_text(cli->memory_file, text, sizeof text)) {
        mf_fail(&err, MEMFIT_NOT_FOUND, "--memory-file %s cannot be read, or is empty\nit holds a size: 512MiB, 8GiB",
                cli->memory_file);
        return cli_report(&cli->common, &err);
    }
    text[strcspn(text, "\r\n")] = 0;
    if (memfit_size_parse(text, cli->whole ? cli->whole : ANY_MEMORY, &bytes, &err) != MEMFIT_OK)
        return cli_usage_error(command, "--memory-file %s: %s\n%s", cli->memory_file, err.message, err.hint);
    if (!cli->o.memory_bytes)
        cli->o.memory_bytes = train_cli_limit(cli);
    return CLI_DONE;
}

/* Names of labels, for the result. Without memory for one the rest is left out. */
static void keep_class_name(void *ctx, int64_t number, const char *name)
{
    train_cli *cli = ctx;
    const char *copy = mf_arena_strdup(&cli->names, name);
    if ((int64_t)cli->class_count == number && copy &&
        mf_grow(NULL, &cli->classes, &cli->class_room, cli->class_count, sizeof *cli->classes))
        cli->classes[cli->class_count++] = copy;
}

void train_cli_end(train_cli *cli)
{
    mf_host_free(NULL, cli->classes, cli->class_room * sizeof *cli->classes);
    mf_arena_destroy(&cli->names);
    cli->classes = NULL;
    cli->class_count = cli->class_room = 0;
}

static int read_window(const cli_command *command, train_cli *cli)
{
    const char *text = cli->shuffle_window;
    if (!text || strcmp(text, "auto") == 0)
        return CLI_DONE;
    if (strcmp(text, "all") == 0) {
        cli->o.shuffle_window = -1;
        return CLI_DONE;
    }
    char *end;
    cli->o.shuffle_window = strtoll(text, &end, 10);
    if (*end || end == text || cli->o.shuffle_window < 2 || cli->o.shuffle_window > INT32_MAX / 2)
        return cli_usage_error(command, "--shuffle-window %s: must be auto, all or a number of samples from 2", text);
    return CLI_DONE;
}

int train_cli_resolve(const cli_command *command, train_cli *cli)
{
    signal(SIGBUS, mapped_file_lost);
    signal(SIGXFSZ, SIG_IGN); /* `ulimit -f` then is an error of writing, with a message, and not the end */
    int status = read_limit(command, cli);
    if (status == CLI_DONE)
        status = read_device(command, cli);
    if (status == CLI_DONE)
        status = read_dims(command, cli);
    if (status == CLI_DONE)
        status = read_prefetch(command, cli);
    if (status == CLI_DONE)
        status = read_images(command, cli);
    if (status == CLI_DONE)
        status = read_window(command, cli);
    read_shape(cli);
    cli->o.threads = (unsigned)cli->threads;
    cli->o.seed = (uint64_t)cli->seed;
    cli->o.loss_chunks = (unsigned)cli->chunks;
    if (status == CLI_DONE && cli->memory_file)
        status = read_memory_file(command, cli);
    cli->o.ctx = cli;
    cli->o.note = train_cli_note;
    cli->o.quiet = cli->common.quiet;
    cli->o.verbose = cli->common.verbose;
    if (cli_allocations_are_counted())
        cli->o.allocation_count = cli_allocation_count;
    cli->o.in_steps = cli_in_steps;
    mf_arena_init(&cli->names, NULL);
    cli->o.class_name = keep_class_name;
    return status;
}

/* ---- signals ----------------------------------------------------------------------------------------------- */

/* Control-C, SIGTERM and SIGHUP (a connection that was lost) end a run after the step it is in, so that its files are
 * whole; another one seconds later ends it at once (not before: `timeout` and terminals send the same signal twice). A
 * handler can reach nothing but variables like these. */
static volatile sig_atomic_t interrupted_by;
static volatile time_t interrupted_at;

static void on_signal(int number)
{
    if (interrupted_by && time(NULL) > interrupted_at + 1) {
        signal(number, SIG_DFL);
        raise(number);
    }
    if (!interrupted_by)
        interrupted_at = time(NULL);
    interrupted_by = number;
}

static bool is_interrupted(void *ctx)
{
    (void)ctx;
    return interrupted_by != 0;
}

void train_cli_catch_signals(train_cli *cli)
{
    cli->o.stop = is_interrupted;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++)
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    /* A reader that leaves (`| head -1`) must not take hours of training with it: what is printed is lost, files are
     * not. */
    signal(SIGPIPE, SIG_IGN);
}

void train_cli_end_by_signal(void)
{
    fflush(stdout);
    signal(interrupted_by, SIG_DFL);
    raise(interrupted_by);
}

/* ---- a limit that changes ----------------------------------------------------------------------------------- */

enum { LIMIT_EVERY_US = 20000 };

uint64_t train_cli_limit(void *ctx)
{
    train_cli *cli = ctx;
    uint64_t now = mf_os_now_us();
    if (cli->limit_read_us && now - cli->limit_read_us < LIMIT_EVERY_US)
        return cli->limit;
    cli->limit_read_us = now;
    uint64_t limit = is_card(cli) ? UINT64_MAX : mf_os_soft_limit(), wanted; /* the kernel's is about the host */
    char text[64];
    memfit_error ignored; /* half-written, or a slip: what held before holds on */
    if (cli->memory_file && mf_os_read_text(cli->memory_file, text, sizeof text)) {
        text[strcspn(text, "\r\n")] = 0;
        bool good = memfit_size_parse(text, cli->whole, &wanted, &ignored) == MEMFIT_OK && wanted >= 1 << 20;
        if (good)
            limit = wanted < limit ? wanted : limit;
        cli->slips = good ? 0 : cli->slips + 1;
        if (cli->slips == 2) /* not while it is being written */
            cli_warn("%s: \"%s\" is not a size of 1MiB or more: the limit stays as it was", cli->memory_file, text);
    }
    cli->limit = limit == UINT64_MAX ? 0 : limit;
    return cli->limit;
}

void train_cli_note(void *ctx, const char *text)
{
    train_cli *cli = ctx;
    mf_print(cli->common.quiet ? stderr : cli_message_stream(&cli->common), "%s\n", text);
}

/* ---- progress --------------------------------------------------------------------------------------------- */

typedef struct text {
    char *at;
    size_t left;
} text;

static void put(text *t, const char *format, ...) MEMFIT_PRINTF(2, 3);
static void put(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = mf_vformat(t->at, t->left, format, args);
    va_end(args);
    if (n > 0 && (size_t)n < t->left) {
        t->at += n;
        t->left -= (size_t)n;
    }
}

static void put_value(text *t, const char *prefix, const char *name, double v)
{
    put(t, fabs(v) > 1e-3 ? " - %s%s: %.4f" : " - %s%s: %.4e", prefix, name, v);
}

/* Names in Keras's order: loss stands among the metrics by its name. */
static void put_values(text *t, const memfit_train_event *e, bool val)
{
    bool loss_done = false;
    for (uint32_t i = 0; i <= e->metric_count; i++) {
        if (!loss_done && (i == e->metric_count || strcmp("loss", e->metric_names[i]) < 0)) {
            loss_done = true;
            put_value(t, val ? "val_" : "", "loss", val ? e->val_loss : e->loss);
        }
        if (i < e->metric_count)
            put_value(t, val ? "val_" : "", e->metric_names[i], val ? e->val_metrics[i] : e->metrics[i]);
    }
}

static void put_duration(text *t, double seconds)
{
    if (seconds >= 3600)
        put(t, " %d:%02d:%02d", (int)seconds / 3600, (int)seconds / 60 % 60, (int)seconds % 60);
    else if (seconds >= 60)
        put(t, " %d:%02d", (int)seconds / 60, (int)seconds % 60);
    else
        put(t, " %.0fs", seconds);
}

static void put_step_time(text *t, double seconds)
{
    if (seconds >= 1 || seconds == 0)
        put(t, " %.0fs/step", seconds);
    else if (seconds >= 1e-3)
        put(t, " %.0fms/step", seconds * 1e3);
    else
        put(t, " %.0fus/step", seconds * 1e6);
}

/* How much of a line is drawn: narrow terminals get less of it. */
typedef struct line_shape {
    int bar, cells; /* of the steps; of memory, -1: not even the unit twice */
} line_shape;

static void put_memory(text *t, const memfit_train_event *e, line_shape shape)
{
    char now[24], limit[24];
    int cells = e->limit_bytes ? (int)((double)e->memory_bytes / (double)e->limit_bytes * shape.cells + 0.5) : 0;
    memfit_size_format(e->memory_bytes, now, sizeof now);
    memfit_size_format(e->limit_bytes, limit, sizeof limit);
    put(t, "  mem ");
    for (int i = 0; i < shape.cells; i++)
        put(t, "%s", i < cells ? "\u2588" : "\u2591");
    char *unit = strchr(now, ' '), *whose = strchr(limit, ' ');
    if (shape.cells == -1 && unit && whose && strcmp(unit, whose) == 0)
        *unit = 0;
    put(t, "%s%s of %s", shape.cells > 0 ? " " : "", now, limit);
}

static void put_bar(text *t, const memfit_train_event *e, int cells)
{
    int done = e->steps ? (int)(cells * e->step / e->steps) : 0;
    int digits = snprintf(NULL, 0, "%lld", (long long)e->steps);
    put(t, "%*lld/%lld ", digits, (long long)e->step, (long long)e->steps);
    for (int i = 0; i < cells; i++)
        put(t, "%s", i < done ? "\u2501" : i == done ? "\u2578" : "\u2500");
}

static unsigned shown_columns(const char *line)
{
    unsigned shown = 0;
    for (const char *p = line; *p; p++)
        shown += ((unsigned char)*p & 0xc0) != 0x80 && *p != '\r';
    return shown;
}

/* What would wrap is cut: the next line is drawn over this one. */
static void cut_line(char *line, unsigned columns)
{
    unsigned shown = 0;
    for (char *p = line + 1; *p; p++) /* behind the \r; the bytes of a character that follow its first take no place */
        if (((unsigned char)*p & 0xc0) != 0x80 && shown++ == columns - 1) {
            *p = 0;
            return;
        }
}

/* The line in the widest shape that the terminal has room for; what is no terminal gets all of it. */
static text draw_line(train_cli *cli, const memfit_train_event *e, double per_step, unsigned columns)
{
    static const line_shape shapes[] = {{20, 8}, {10, 8}, {10, 0}, {10, -1}, {5, -1}, {3, -1}};
    text t;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        t = (text){cli->line, sizeof cli->line};
        if (columns)
            put(&t, "\r");
        put_bar(&t, e, shapes[i].bar);
        put_duration(&t, e->epoch_end ? e->seconds : per_step * (double)(e->steps - e->step));
        put_step_time(&t, per_step);
        put_values(&t, e, false);
        if (e->validated)
            put_values(&t, e, true);
        put_memory(&t, e, shapes[i]);
        if (!columns || shown_columns(cli->line) < columns)
            break;
    }
    return t;
}

void train_cli_progress(void *ctx, const memfit_train_event *e)
{
    train_cli *cli = ctx;
    FILE *f = cli_message_stream(&cli->common);
    unsigned columns = mf_os_terminal_columns(f);
    if (cli->epoch_shown != e->epoch + 1) { /* a resumed run begins within an epoch, or at its end */
        cli->epoch_shown = e->epoch + 1;
        cli->steps_before = e->epoch_end ? e->step : e->step - 1;
        mf_print(f, "Epoch %lld/%lld\n", (long long)e->epoch + 1, (long long)e->epochs);
    }
    double per_step = e->step > cli->steps_before ? e->seconds / (double)(e->step - cli->steps_before) : 0;
    if (!e->epoch_end && (!columns || (e->seconds - cli->last_draw < 0.05 && e->step > cli->steps_before + 1)))
        return;
    cli->last_draw = e->epoch_end ? 0 : e->seconds;
    text t = draw_line(cli, e, per_step, columns);
    if (e->epoch_end)
        put(&t, "\n");
    else
        cut_line(cli->line, columns);
    fputs(cli->line, f);
    if (columns && !e->epoch_end)
        fputs("\033[K", f);
    fflush(f);
}

/* ---- evaluate and predict ------------------------------------------------------------------------------------- */

int train_cli_forward(const cli_command *command, int argc, char **argv,
                      memfit_status (*call)(const memfit_train_options *, memfit_train_result *, memfit_error *),
                      const char *what)
{
    train_cli_short_spin(argv);
    train_cli cli = {0};
    memfit_train_options *o = &cli.o;
    *o = (memfit_train_options)MEMFIT_TRAIN_OPTIONS;
    const char *outputs = NULL;
    const cli_binding bindings[] = {CLI_BIND("--data", &o->data),
                                    TRAIN_CLI_INPUT(cli),
                                    CLI_BIND("--batch-size", &o->batch),
                                    CLI_BIND("--memory", &cli.memory),
                                    CLI_BIND("--device", &cli.device),
                                    CLI_BIND("--loss", &o->loss),
                                    CLI_BIND("--precision", &o->precision),
                                    CLI_BIND("--input-shape", &cli.input_shape),
                                    CLI_BIND("--threads", &cli.threads),
                                    CLI_BIND("--dim", &cli.dims),
                                    CLI_BIND("--out", &outputs),
                                    {0}};
    int status = cli_parse(command, argc, argv, bindings, &cli.common, NULL);
    if (status != CLI_DONE || cli.common.help)
        return status;
    o->model = cli.common.operands[0];
    if (!o->data)
        return cli_usage_error(command, "--data SOURCE is missing: a file, or synthetic");
    status = train_cli_resolve(command, &cli);
    if (status != CLI_DONE)
        return status;
    memfit_train_result result = MEMFIT_TRAIN_RESULT;
    memfit_error err = {0};
    const bool predicts = cli.predicts = call == memfit_predict;
    o->out = predicts ? outputs : NULL;
    if (predicts && !outputs && !o->quiet)
        o->note(o->ctx, "without --out FILE.npy the predictions go nowhere");
    cli_reserve_begin(o->threads ? o->threads : mf_os_cpu_count());
    train_cli_catch_signals(&cli);
    memfit_status done = call(o, &result, &err);
    cli_reserve_end();
    if (done == MEMFIT_OK && outputs && !predicts) { /* the outputs that were evaluated: a pass of their own */
        memfit_train_result ignored = MEMFIT_TRAIN_RESULT;
        o->out = outputs;
        done = memfit_predict(o, &ignored, &err);
    }
    if (done != MEMFIT_OK)
        status = cli_report(&cli.common, &err);
    if (done == MEMFIT_INTERRUPTED)
        train_cli_end_by_signal();
    o->out = outputs;
    if (done == MEMFIT_OK)
        train_cli_print(&cli, &result, what);
    train_cli_end(&cli);
    return done == MEMFIT_OK ? CLI_DONE : status;
}
