/*
 * hdf5_header.c: superblock and object headers.
 *
 *   superblock -> address of the root group's object header
 *   object header: a list of messages (type, size, body), spread over pieces chained by continuation messages
 *
 * Version 1 headers (Keras, h5py by default): 16 bytes of prefix, messages aligned to 8.
 * Version 2 headers ("OHDR", libver="latest"): packed messages, each piece closed by a check sum, which is not
 * verified: every field is range-checked anyway, and a flipped bit in a name is an honest "not found".
 */
#include "file/hdf5_inner.h"

#include <stdarg.h>
#include <stdio.h>

static const unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};

memfit_status mf_hdf5_fail(const mf_hdf5 *file, uint64_t at, memfit_status status, memfit_error *err,
                           const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mf_vfail(err, status, format, args);
    va_end(args);
    return mf_error_prefix(err, status, "%.120s, byte %" PRIu64, file->name, at + file->base);
}

memfit_status mf_hdf5_step(mf_hdf5 *file, uint64_t n, memfit_error *err)
{
    if (file->steps < n)
        return mf_fail(err, MEMFIT_DAMAGED, "%.120s: its structures lead in circles", file->name);
    file->steps -= n;
    return MEMFIT_OK;
}

static uint64_t take_word(mf_run *run, unsigned n)
{
    uint64_t v = mf_run_take(run, n);
    return n < 8 && v == ((uint64_t)1 << (8 * n)) - 1 ? MF_HDF5_UNDEFINED : v;
}

uint64_t mf_run_address(mf_run *run, const mf_hdf5 *file)
{
    return take_word(run, file->offset_bytes);
}

uint64_t mf_run_length(mf_run *run, const mf_hdf5 *file)
{
    return take_word(run, file->length_bytes);
}

/* ---- superblock ------------------------------------------------------------------------------------------- */

/* The superblock may stand at 0, 512, 1024, 2048, ... behind a user block (MATLAB writes one). */
static bool find_superblock(const unsigned char *data, uint64_t bytes, uint64_t *at)
{
    for (uint64_t a = 0; a < bytes && bytes - a >= 8; a = a ? a * 2 : 512)
        if (memcmp(data + a, signature, 8) == 0) {
            *at = a;
            return true;
        }
    return false;
}

bool mf_hdf5_sniff(const unsigned char *data, uint64_t bytes)
{
    uint64_t at;
    return find_superblock(data, bytes, &at);
}

/* Versions 0 and 1: sizes, then four addresses, then the root group's symbol table entry. */
static void superblock_old(mf_hdf5 *f, mf_run *run, unsigned version, uint64_t *end_address)
{
    mf_run_skip(run, 4); /* free space version, root group version, reserved, shared header version */
    f->offset_bytes = (unsigned)mf_run_take(run, 1);
    f->length_bytes = (unsigned)mf_run_take(run, 1);
    if (f->offset_bytes > 8 || f->length_bytes > 8)
        run->bad = true;
    mf_run_skip(run, 1 + 2 + 2 + 4 + (version == 1 ? 4 : 0));
    f->base = mf_run_address(run, f);
    mf_run_skip(run, f->offset_bytes); /* free space index */
    *end_address = mf_run_address(run, f);
    mf_run_skip(run, 2 * (uint64_t)f->offset_bytes); /* driver information, then the root entry's name offset */
    f->root = mf_run_address(run, f);
}

static void superblock_new(mf_hdf5 *f, mf_run *run, uint64_t *end_address)
{
    f->offset_bytes = (unsigned)mf_run_take(run, 1);
    f->length_bytes = (unsigned)mf_run_take(run, 1);
    if (f->offset_bytes > 8 || f->length_bytes > 8)
        run->bad = true;
    mf_run_skip(run, 1);
    f->base = mf_run_address(run, f);
    mf_run_skip(run, f->offset_bytes); /* extension */
    *end_address = mf_run_address(run, f);
    f->root = mf_run_address(run, f);
}

memfit_status mf_hdf5_open(mf_hdf5 *file, const unsigned char *data, uint64_t bytes, const char *name,
                           memfit_error *err)
{
    mf_hdf5 f = {.data = data, .bytes = bytes, .name = name};
    uint64_t at, end_address = 0;
    if (!find_superblock(data, bytes, &at))
        return mf_fail(err, MEMFIT_DAMAGED, "%.120s: no HDF5 signature", name);
    mf_run run = {data + at + 8, data + bytes, false};
    unsigned version = (unsigned)mf_run_take(&run, 1);
    if (version > 3)
        return mf_hdf5_fail(&f, at, MEMFIT_UNSUPPORTED, err, "superblock version %u", version);
    if (version < 2)
        superblock_old(&f, &run, version, &end_address);
    else
        superblock_new(&f, &run, &end_address);
    if (run.bad)
        return mf_hdf5_damaged(&f, at, err, "the superblock is damaged or cut short");
    /* Most writers leave the base at 0 also behind a user block; addresses then count from the superblock. */
    if (f.base != at)
        f.base = at;
    f.data = data + at;
    f.bytes = bytes - at;
    if (f.offset_bytes < 2 || f.length_bytes < 2 || end_address == MF_HDF5_UNDEFINED)
        return mf_hdf5_damaged(&f, 0, err, "the superblock is damaged");
    if (end_address > f.bytes)
        return mf_hdf5_damaged(&f, f.bytes, err, "the file is cut short: %" PRIu64 " of %" PRIu64 " bytes are there",
                               f.bytes, end_address);
    f.steps = 100000 + 4 * f.bytes;
    *file = f;
    return MEMFIT_OK;
}

/* ---- object headers --------------------------------------------------------------------------------------- */

static memfit_status begin_v2(mf_hdf5_walk *w, memfit_error *err)
{
    mf_hdf5 *f = w->file;
    mf_run run = {f->data + w->address + 4, f->data + f->bytes, false};
    unsigned version = (unsigned)mf_run_take(&run, 1), flags = (unsigned)mf_run_take(&run, 1);
    if (version != 2)
        return mf_hdf5_damaged(f, w->address, err, "object header of version %u", version);
    mf_run_skip(&run, (flags & 0x20 ? 16u : 0u) + (flags & 0x10 ? 4u : 0u));
    uint64_t bytes = mf_run_take(&run, 1u << (flags & 3));
    w->version = 2;
    w->prefix_bytes = flags & 4 ? 6 : 4;
    w->at = (uint64_t)(run.p - f->data);
    if (run.bad || !mf_hdf5_inside(f, w->at, bytes))
        return mf_hdf5_damaged(f, w->address, err, "an object header reaches beyond the file's end");
    w->end = w->at + bytes;
    return MEMFIT_OK;
}

memfit_status mf_hdf5_walk_begin(mf_hdf5_walk *w, mf_hdf5 *file, uint64_t address, memfit_error *err)
{
    w->file = file;
    w->address = address;
    w->piece = w->pieces_count = 0;
    memfit_status st = mf_hdf5_step(file, 1, err);
    if (st)
        return st;
    if (address == MF_HDF5_UNDEFINED || !mf_hdf5_inside(file, address, 16))
        return mf_hdf5_damaged(file, address, err, "an object header must be here, which is beyond the file's end");
    const unsigned char *p = file->data + address;
    if (memcmp(p, "OHDR", 4) == 0)
        return begin_v2(w, err);
    if (p[0] != 1)
        return mf_hdf5_damaged(file, address, err, "no object header here");
    uint64_t bytes = mf_le32(p + 8);
    w->version = 1;
    w->prefix_bytes = 8;
    w->at = address + 16;
    if (!mf_hdf5_inside(file, w->at, bytes))
        return mf_hdf5_damaged(file, address, err, "an object header reaches beyond the file's end");
    w->end = w->at + bytes;
    return MEMFIT_OK;
}

static memfit_status note_continuation(mf_hdf5_walk *w, const mf_hdf5_message *m, memfit_error *err)
{
    mf_run run = m->body;
    uint64_t at = mf_run_address(&run, w->file), bytes = mf_run_length(&run, w->file);
    if (run.bad || !mf_hdf5_inside(w->file, at, bytes))
        return mf_hdf5_damaged(w->file, m->at, err, "an object header's continuation lies beyond the file's end");
    if (w->version == 2) { /* "OCHK" in front, check sum behind */
        if (bytes < 8 || memcmp(w->file->data + at, "OCHK", 4) != 0)
            return mf_hdf5_damaged(w->file, at, err, "no object header continuation here");
        at += 4;
        bytes -= 8;
    }
    if (w->pieces_count == MF_HDF5_MOST_PIECES)
        return mf_hdf5_damaged(w->file, w->address, err, "an object header of more than %d pieces",
                               MF_HDF5_MOST_PIECES);
    w->pieces[w->pieces_count].at = at;
    w->pieces[w->pieces_count++].bytes = bytes;
    return MEMFIT_OK;
}

static memfit_status read_message(mf_hdf5_walk *w, mf_hdf5_message *m, memfit_error *err)
{
    mf_hdf5 *f = w->file;
    const unsigned char *p = f->data + w->at;
    uint64_t bytes = w->version == 1 ? mf_le16(p + 2) : mf_le16(p + 1);
    m->type = w->version == 1 ? mf_le16(p) : p[0];
    m->shared = (w->version == 1 ? p[4] : p[3]) & 2;
    m->at = w->at + w->prefix_bytes;
    if (bytes > w->end - m->at)
        return mf_hdf5_damaged(f, w->at, err, "a message of %" PRIu64 " bytes reaches beyond its object header", bytes);
    m->body = (mf_run){f->data + m->at, f->data + m->at + bytes, false};
    w->at = m->at + bytes;
    return MEMFIT_OK;
}

memfit_status mf_hdf5_walk_next(mf_hdf5_walk *w, mf_hdf5_message *m, bool *more, memfit_error *err)
{
    for (;;) {
        memfit_status st = mf_hdf5_step(w->file, 1, err);
        if (st)
            return st;
        if (w->end - w->at < w->prefix_bytes) { /* a rest too small for a message is padding */
            if (w->piece == w->pieces_count) {
                *more = false;
                return MEMFIT_OK;
            }
            w->at = w->pieces[w->piece].at;
            w->end = w->at + w->pieces[w->piece++].bytes;
            continue;
        }
        if ((st = read_message(w, m, err)))
            return st;
        if (m->type != MF_HDF5_MSG_CONTINUATION) {
            *more = true;
            return MEMFIT_OK;
        }
        if ((st = note_continuation(w, m, err)))
            return st;
    }
}

/* ---- the global heap -------------------------------------------------------------------------------------- */

memfit_status mf_hdf5_heap_text(mf_hdf5 *file, const unsigned char *reference, const char **text, uint64_t *bytes,
                                memfit_error *err)
{
    mf_run run = {reference, reference + 8 + file->offset_bytes, false};
    uint64_t length = mf_run_take(&run, 4), at = mf_run_address(&run, file), index = mf_run_take(&run, 4);
    *text = "";
    *bytes = 0;
    if (!length || at == 0 || at == MF_HDF5_UNDEFINED)
        return MEMFIT_OK;
    if (!mf_hdf5_inside(file, at, 16) || memcmp(file->data + at, "GCOL", 4) != 0)
        return mf_hdf5_damaged(file, at, err, "no heap of strings here");
    run = (mf_run){file->data + at + 8, file->data + file->bytes, false};
    uint64_t heap_bytes = mf_run_length(&run, file);
    if (run.bad || !mf_hdf5_inside(file, at, heap_bytes) || heap_bytes < 16)
        return mf_hdf5_damaged(file, at, err, "a heap of strings reaches beyond the file's end");
    run.end = file->data + at + heap_bytes;
    while (run.end - run.p >= 8 + (int)file->length_bytes) {
        memfit_status st = mf_hdf5_step(file, 1, err);
        if (st)
            return st;
        uint64_t id = mf_run_take(&run, 2);
        mf_run_skip(&run, 6);
        uint64_t size = mf_run_length(&run, file);
        if (id == 0 || run.bad)
            break;
        if (size > (uint64_t)(run.end - run.p))
            return mf_hdf5_damaged(file, at, err, "an object of a heap of strings reaches beyond it");
        if (id == index) {
            if (length > size)
                return mf_hdf5_damaged(file, at, err, "a string is longer than its place in the heap");
            *text = (const char *)run.p;
            *bytes = length;
            return MEMFIT_OK;
        }
        uint64_t padded = (size + 7) & ~(uint64_t)7;
        mf_run_skip(&run, padded < size ? size : padded);
    }
    return mf_hdf5_damaged(file, at, err, "the heap of strings has no object %" PRIu64, index);
}
