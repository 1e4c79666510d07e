/*
 * epoch_log.c: see epoch_log.h.
 *
 * TensorBoard's files are TFRecords: length, masked CRC-32C of the length, bytes, masked CRC-32C of the bytes. A record
 * is an Event message: 1 wall_time (double), 2 step, 3 file version, 5 summary{1 value{1 tag, 2 simple_value}}, 7
 * session_log{1 status}. The folders are Keras's: train and validation, tags epoch_loss, epoch_<metric>.
 *
 * A run that goes on has a file of its own beside the first one's. It begins with a session_log of status START and the
 * epoch it goes on in: by TensorBoard's convention readers then drop what older files hold of that epoch and later.
 */
#include "train/epoch_log.h"

#include "base/error.h"
#include "base/os.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_BYTES = 16384 };

struct mf_events {
    const memfit_host *host;
    const char *folder; /* TensorBoard's, or NULL */
    FILE *csv, *board[2];
    char path[3][512];
    bool header;
    int failed[2]; /* why the first record of TensorBoard's files is not in them; 0: it is */
    uint32_t table[256];
    char buffer[3][BUFFER_BYTES];
};

static memfit_status too_long(const char *path, memfit_error *err)
{
    return mf_fail(err, MEMFIT_INVALID, "%.80s...: a path of %zu characters is too long for a log", path, strlen(path));
}

static memfit_status open_log(mf_events *e, FILE **file, int slot, const char *mode, memfit_error *err)
{
    *file = fopen(e->path[slot], mode);
    if (!*file)
        return mf_fail(err, MEMFIT_IO, "cannot write %s: %s", e->path[slot], strerror(errno));
    setvbuf(*file, e->buffer[slot], _IOFBF, BUFFER_BYTES);
    return MEMFIT_OK;
}

/* ---- records ---------------------------------------------------------------------------------------------- */

static uint32_t masked_crc(const mf_events *e, const unsigned char *data, size_t n)
{
    uint32_t c = 0xffffffffu;
    for (size_t i = 0; i < n; i++)
        c = e->table[(c ^ data[i]) & 255] ^ c >> 8;
    c ^= 0xffffffffu;
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

static void write_record(const mf_events *e, FILE *f, const unsigned char *data, size_t n)
{
    unsigned char head[12], tail[4];
    for (int i = 0; i < 8; i++)
        head[i] = (unsigned char)((uint64_t)n >> (8 * i));
    uint32_t c = masked_crc(e, head, 8);
    for (int i = 0; i < 4; i++)
        head[8 + i] = (unsigned char)(c >> (8 * i));
    c = masked_crc(e, data, n);
    for (int i = 0; i < 4; i++)
        tail[i] = (unsigned char)(c >> (8 * i));
    fwrite(head, 1, 12, f);
    fwrite(data, 1, n, f);
    fwrite(tail, 1, 4, f);
}

static size_t put_varint(unsigned char *p, uint64_t v)
{
    size_t n = 0;
    while (v >= 128) {
        p[n++] = (unsigned char)(v | 128);
        v >>= 7;
    }
    p[n++] = (unsigned char)v;
    return n;
}

static size_t put_time(unsigned char *p)
{
    double t = mf_os_unix_time();
    p[0] = 1 << 3 | 1;
    memcpy(p + 1, &t, 8);
    return 9;
}

static void write_scalar(const mf_events *e, FILE *f, int64_t step, const char *tag, double value)
{
    unsigned char out[512], v[256];
    size_t n = put_time(out), m = 0, tag_bytes = strlen(tag);
    if (tag_bytes > 127)
        tag_bytes = 127;
    float single = (float)value;
    v[m++] = 1 << 3 | 2;
    m += put_varint(v + m, tag_bytes);
    memcpy(v + m, tag, tag_bytes);
    m += tag_bytes;
    v[m++] = 2 << 3 | 5;
    memcpy(v + m, &single, 4);
    m += 4;
    out[n++] = 2 << 3;
    n += put_varint(out + n, (uint64_t)step);
    out[n++] = 5 << 3 | 2;
    unsigned char length[10];
    size_t l = put_varint(length, m);
    n += put_varint(out + n, m + l + 1);
    out[n++] = 1 << 3 | 2;
    memcpy(out + n, length, l);
    n += l;
    memcpy(out + n, v, m);
    write_record(e, f, out, n + m);
}

static bool write_version(const mf_events *e, FILE *f)
{
    unsigned char out[64];
    size_t n = put_time(out);
    static const char version[] = "brain.Event:2";
    out[n++] = 3 << 3 | 2;
    out[n++] = sizeof version - 1;
    memcpy(out + n, version, sizeof version - 1);
    write_record(e, f, out, n + sizeof version - 1);
    return fflush(f) == 0;
}

/* From here on everything of step `step` and later is said anew. */
static bool write_restart(const mf_events *e, FILE *f, int64_t step)
{
    static const unsigned char start[] = {7 << 3 | 2, 2, 1 << 3, 1};
    unsigned char out[64];
    size_t n = put_time(out);
    out[n++] = 2 << 3;
    n += put_varint(out + n, (uint64_t)step);
    memcpy(out + n, start, sizeof start);
    write_record(e, f, out, n + sizeof start);
    return fflush(f) == 0;
}

static memfit_status open_board(mf_events *e, const char *folder, int64_t resumed, memfit_error *err)
{
    static const char *const part[2] = {"train", "validation"};
    char host[65], path[400];
    mf_os_host_name(host, sizeof host);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0x82f63b78u ^ c >> 1 : c >> 1;
        e->table[i] = c;
    }
    memfit_status status = mf_os_make_folder(folder, err);
    for (int i = 0; i < 2 && status == MEMFIT_OK; i++) {
        if (snprintf(path, sizeof path, "%s/%s", folder, part[i]) >= (int)sizeof path)
            return too_long(folder, err);
        status = mf_os_make_folder(path, err);
        if (status != MEMFIT_OK)
            return status;
        snprintf(e->path[1 + i], sizeof e->path[0], "%s/events.out.tfevents.%lld.%.32s.%d.%d.v2", path,
                 (long long)mf_os_unix_time(), host, (int)mf_os_process_id(), i);
        status = open_log(e, &e->board[i], 1 + i, "wb", err);
        bool resumes = resumed >= 0 && resumed < INT64_MAX;
        if (status == MEMFIT_OK &&
            (!write_version(e, e->board[i]) || (resumes && !write_restart(e, e->board[i], resumed))))
            e->failed[i] = errno ? errno : EIO; /* said with the first epoch: training goes on */
    }
    return status;
}

/* Where the rows of epoch `first` and later begin in a log of ours; its end when there are none. A run that was killed
 * may have logged more than its checkpoint knows of: these epochs are logged again. */
static long end_of_kept(FILE *f, int64_t first)
{
    char line[256];
    long at = 0;
    bool whole = true, ours = fgets(line, sizeof line, f) && strncmp(line, "epoch,", 6) == 0;
    while (ours) {
        whole = strchr(line, '\n') != NULL; /* a long line comes in parts */
        if (whole)
            at = ftell(f);
        if (!fgets(line, sizeof line, f))
            break;
        char *end;
        long long epoch = whole ? strtoll(line, &end, 10) : -1;
        if (whole && end != line && *end == ',' && epoch >= first)
            return at;
    }
    fseek(f, 0, SEEK_END);
    return ftell(f);
}

static void drop_rows(const char *path, int64_t first)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return;
    long keep = end_of_kept(f, first);
    fclose(f);
    if (keep > 0 && (uint64_t)keep < mf_os_file_bytes(path) && truncate(path, keep) != 0)
        return; /* then they stand there twice */
}

memfit_status mf_events_create(const memfit_host *host, const char *csv, const char *tensorboard, mf_events **events,
                               memfit_error *err)
{
    *events = NULL;
    if (!csv && !tensorboard)
        return MEMFIT_OK;
    mf_events *e = mf_host_zalloc(host, sizeof *e);
    if (!e)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the logs");
    e->host = host;
    e->folder = tensorboard;
    if (csv && strlen(csv) >= sizeof e->path[0]) {
        mf_events_destroy(e);
        return too_long(csv, err);
    }
    snprintf(e->path[0], sizeof e->path[0], "%s", csv ? csv : "");
    *events = e;
    return MEMFIT_OK;
}

memfit_status mf_events_open(mf_events *e, int64_t resumed, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    if (e && e->path[0][0]) {
        if (resumed >= 0)
            drop_rows(e->path[0], resumed);
        e->header = !(resumed >= 0 && mf_os_file_bytes(e->path[0]) > 0);
        status = open_log(e, &e->csv, 0, resumed >= 0 ? "a" : "w", err);
    }
    if (e && e->folder && status == MEMFIT_OK)
        status = open_board(e, e->folder, resumed, err);
    return status;
}

void mf_events_destroy(mf_events *e)
{
    if (!e)
        return;
    if (e->csv)
        fclose(e->csv);
    for (int i = 0; i < 2; i++)
        if (e->board[i])
            fclose(e->board[i]);
    mf_host_free(e->host, e, sizeof *e);
}

/* ---- an epoch --------------------------------------------------------------------------------------------- */

static void put_number(FILE *f, double value)
{
    char text[40];
    mf_text_put_double(text, sizeof text, 9, value);
    fprintf(f, ",%s", text);
}

/* Keys sorted as Keras sorts them: metrics and loss by name, then the same with val_. */
static void csv_line(mf_events *e, const memfit_train_event *v, bool header)
{
    FILE *f = e->csv;
    if (header)
        fputs("epoch", f);
    else
        fprintf(f, "%lld", (long long)v->epoch);
    for (int val = 0; val < (v->validated ? 2 : 1); val++) {
        bool loss_done = false;
        for (uint32_t i = 0; i <= v->metric_count; i++) {
            if (!loss_done && (i == v->metric_count || strcmp("loss", v->metric_names[i]) < 0)) {
                loss_done = true;
                if (header)
                    fprintf(f, ",%sloss", val ? "val_" : "");
                else
                    put_number(f, val ? v->val_loss : v->loss);
            }
            if (i == v->metric_count)
                break;
            if (header)
                fprintf(f, ",%s%s", val ? "val_" : "", v->metric_names[i]);
            else
                put_number(f, val ? v->val_metrics[i] : v->metrics[i]);
        }
    }
    fputs("\r\n", f);
}

memfit_status mf_events_epoch(mf_events *e, const memfit_train_event *v, memfit_error *err)
{
    if (!e)
        return MEMFIT_OK;
    if (e->csv) {
        if (e->header)
            csv_line(e, v, true);
        e->header = false;
        csv_line(e, v, false);
        if (fflush(e->csv) != 0)
            return mf_fail(err, MEMFIT_IO, "cannot write %s: %s", e->path[0], strerror(errno));
    }
    for (int i = 0; i < 2; i++)
        if (e->failed[i])
            return mf_fail(err, MEMFIT_IO, "cannot write %s: %s", e->path[1 + i], strerror(e->failed[i]));
    for (int i = 0; i < 2 && e->board[0]; i++) {
        if (i == 1 && !v->validated)
            break;
        write_scalar(e, e->board[i], v->epoch, "epoch_loss", i ? v->val_loss : v->loss);
        for (uint32_t m = 0; m < v->metric_count; m++) {
            char tag[64];
            snprintf(tag, sizeof tag, "epoch_%.50s", v->metric_names[m]);
            write_scalar(e, e->board[i], v->epoch, tag, i ? v->val_metrics[m] : v->metrics[m]);
        }
        if (i == 0) {
            write_scalar(e, e->board[0], v->epoch, "epoch_learning_rate", v->learning_rate);
            write_scalar(e, e->board[0], v->epoch, "epoch_memory_bytes", (double)v->memory_bytes);
        }
        if (fflush(e->board[i]) != 0)
            return mf_fail(err, MEMFIT_IO, "cannot write %s: %s", e->path[1 + i], strerror(errno));
    }
    return MEMFIT_OK;
}
