/*
 * guard.h: nothing a user has is destroyed.
 *
 * Before a run opens anything, its files are looked at together. An output may not be
 *   - an input of the run, by whatever name (links and hard links followed), nor a file inside a folder that is one, nor one that
 *     an input matches as a pattern;
 *   - another output of the run;
 *   - an existing file of another kind than the output writes, told by what is in it, unless `force`.
 * An empty file may be replaced, a device or a pipe written to. A link whose target is missing is followed: the target
 * is made.
 */
#ifndef MF_BASE_GUARD_H
#define MF_BASE_GUARD_H

#include "memfit/base.h"

typedef enum mf_file_kind {
    MF_FILE_MODEL,   /* a model of Keras: .keras or .h5, checkpoints too */
    MF_FILE_LOG,     /* of epochs, CSV */
    MF_FILE_TRACE,   /* of memory */
    MF_FILE_PAGE,    /* of memfit plan, HTML */
    MF_FILE_ARRAY,   /* .npy */
    MF_FILE_GRAPH,   /* a step as text or for Graphviz */
    MF_FILE_RECORD,  /* of memfit doctor, JSON */
    MF_FILE_PLAN,    /* of memfit plan --save, JSON */
    MF_FILE_PACKING, /* a table of buffers with offsets, CSV */
    MF_FILE_RUN,     /* a report of memfit run, JSON */
    MF_FILE_CACHE,   /* of samples, --cache */
    MF_FILE_TIMES,   /* of memfit tune */
    MF_FILE_FOLDER,  /* a folder that gets new files */
    MF_FILE_VIZ,     /* of memfit report: a trace for memory_viz */
    MF_FILE_PERFETTO,
    MF_FILE_FOLDED, /* of memfit report: folded stacks */
    MF_FILE_CARDS,  /* of memfit doctor --card-file, JSON */
} mf_file_kind;

typedef struct mf_named_file {
    const char *name; /* what the user calls it: "--out", "MODEL" */
    const char *path; /* NULL: not given */
    bool output;
    mf_file_kind kind;    /* outputs */
    const char *replaces; /* outputs: the name of an input it may be; NULL: none */
} mf_named_file;

/* INVALID when an output would destroy something; the message names both files, the hint what to do. */
memfit_status mf_guard_files(const mf_named_file *files, size_t count, bool force, memfit_error *err);
/* Is this what a file of the kind begins with (and, of containers, holds)? For tests; false when it cannot be read. */
bool mf_guard_is_kind(const char *path, mf_file_kind kind);

#endif
