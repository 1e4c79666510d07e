/* os.h: every call to the operating system that is not plain stdio. One implementation: os_linux.c, and for
 * writing files os_write_linux.c. */
#ifndef MF_BASE_OS_H
#define MF_BASE_OS_H

#include "memfit/base.h"

#include <stdio.h>

/* A file mapped for reading. bytes may be 0 (data then is a valid empty string). */
typedef struct mf_mapping {
    const unsigned char *data;
    uint64_t bytes;
} mf_mapping;
/* NOT_FOUND for a missing file or one that may not be read, DAMAGED for a directory or device, IO otherwise; the
 * message names the path. */
memfit_status mf_os_map_file(const char *path, mf_mapping *mapping, memfit_error *err);
void mf_os_unmap_file(mf_mapping *mapping);
/* The same, and the file stays open as *descriptor (-1 on failure), so that one can ask whether it still is as long:
 * reading a mapping beyond the end of its file is a signal, not an error. */
memfit_status mf_os_map_watched(const char *path, mf_mapping *mapping, int *descriptor, memfit_error *err);
uint64_t mf_os_watched_bytes(int descriptor); /* 0 when it cannot be told */
/* Changes when the file's bytes or its length do; 0 when it cannot be told. A file that was replaced by renaming
 * another over it stays as it was. */
uint64_t mf_os_watched_stamp(int descriptor);
void mf_os_unwatch(int descriptor);
/* Asks the kernel to read this part of a mapped file now, without waiting for it. */
void mf_os_read_ahead(const void *mapped, uint64_t bytes);
bool mf_os_is_folder(const char *path);
bool mf_os_disk_is_slow(const char *path); /* it turns, or is reached over a network */
/* Files by the thousand, opened and read one after another: os_list_linux.c. */
typedef enum { MF_ENTRY_FILE, MF_ENTRY_FOLDER, MF_ENTRY_LINKED_FOLDER, MF_ENTRY_OTHER } mf_entry_type;
/* Calls `each` for every entry but "." and "..", in no order; links are followed. Ends at the first that is not OK.
 * NOT_FOUND, IO with the path. */
memfit_status mf_os_list_folder(const char *path,
                                memfit_status (*each)(void *ctx, const char *name, mf_entry_type type,
                                                      memfit_error *err),
                                void *ctx, memfit_error *err);
/* The same for the paths that a pattern of the shell matches, sorted. */
memfit_status mf_os_glob(const char *pattern, memfit_status (*each)(void *ctx, const char *path, memfit_error *err),
                         void *ctx, memfit_error *err);
uint64_t mf_os_peek(const char *path, void *out, uint64_t bytes); /* the first bytes of a plain file: how many */
int mf_os_open_folder(const char *path);                          /* a descriptor for mf_os_open_in; -1 */
int mf_os_open_in(int folder, const char *path);                  /* for reading, of a plain file; -1: errno says why */
uint64_t mf_os_read_at(int descriptor, void *out, uint64_t bytes, uint64_t at);     /* how many; 0: end, or cannot */
bool mf_os_write_at(int descriptor, const void *data, uint64_t bytes, uint64_t at); /* all of it, or errno says why */
int mf_os_open_update(const char *path); /* a plain file, for mf_os_read_at and mf_os_write_at; -1: errno says why */
/* Of a file in a folder (-1: the working one): its size and the time of its last change; false when it cannot be told. */
bool mf_os_stamp_in(int folder, const char *path, uint64_t *bytes, uint64_t *changed_ns);
/* A pipe or a character device: can be read once, from front to end. */
bool mf_os_is_stream(const char *path);

enum { MF_MOST_PATH = 4096 };

/* What a path leads to, links followed, also a link whose target is missing. */
typedef enum { MF_PLACE_NONE, MF_PLACE_FILE, MF_PLACE_FOLDER, MF_PLACE_OTHER } mf_place_type;
typedef struct mf_os_place {
    mf_place_type type;     /* OTHER: a device, a pipe */
    uint64_t device, inode; /* of what is there */
    uint64_t bytes;         /* of a file */
    char path[MF_MOST_PATH];
} mf_os_place;
bool mf_os_find_place(const char *path, mf_os_place *place); /* false: not even the folder is there */
bool mf_os_place_is_inside(const mf_os_place *place, const mf_os_place *folder);

/* A file written whole or not at all: a new file beside the target (without a name, or of one nobody can foresee, with
 * the target's permissions), fsync, rename. Where the target is a link, the file it leads to is replaced, or made when
 * it is missing; a device or pipe is written in place. A folder or an empty name is refused at once. What killed
 * processes left of the same target is removed by mf_os_out_open and mf_os_raw_probe. */
typedef struct mf_outfile {
    FILE *file;
    char path[MF_MOST_PATH];
    char temporary[MF_MOST_PATH + 32]; /* the name it has on the way; empty: in place */
    bool named;                        /* it has that name already */
} mf_outfile;
memfit_status mf_os_out_open(mf_outfile *out, const char *path, memfit_error *err);
memfit_status mf_os_out_commit(mf_outfile *out,
                               memfit_error *err); /* on failure the temporary is gone, the target as before */
void mf_os_out_abandon(mf_outfile *out);

/* The same without any allocation, for writing inside a training step: a descriptor instead of a stream. */
typedef struct mf_rawfile {
    int descriptor;
    char path[MF_MOST_PATH];
    char temporary[MF_MOST_PATH + 32]; /* as in mf_outfile */
    bool named;
} mf_rawfile;
memfit_status mf_os_raw_open(mf_rawfile *out, const char *path, memfit_error *err);
memfit_status mf_os_raw_probe(const char *path, memfit_error *err); /* could it be opened? leaves nothing behind */
memfit_status mf_os_raw_write(mf_rawfile *out, const void *data, uint64_t bytes, memfit_error *err);
memfit_status mf_os_raw_commit(mf_rawfile *out, memfit_error *err); /* as mf_os_out_commit */
void mf_os_raw_abandon(mf_rawfile *out);

memfit_status mf_os_make_folder(const char *path, memfit_error *err); /* fine when it is there */
uint64_t mf_os_file_bytes(const char *path);                          /* 0 when it is not there */
/* A number that another content or length changes; never 0, but 0 when the file cannot be read or is no plain one. */
uint64_t mf_os_file_fingerprint(const char *path);
/* A small text file (of /proc, or written by a person) into buf, ended by 0; false when it cannot be read or is empty.
 * Allocates nothing. */
bool mf_os_read_text(const char *path, char *buf, size_t bytes);
void mf_os_host_name(char *buf, size_t bytes);
/* Runs `work` in a child of this process and waits for it: whatever memory it takes is gone afterwards. Only before there
 * are threads. Its result (0 to 255), or -1 when there was no child or a signal ended it. */
int mf_os_in_child(int (*work)(void *ctx), void *ctx);
long mf_os_process_id(void);

/* For main: descriptors 0 to 2 that the caller had closed are opened on /dev/null, so that no file of ours takes their
 * place and finds messages in it. */
void mf_os_keep_standard(void);

uint64_t mf_os_now_us(void); /* monotonic */
uint64_t mf_os_now_ns(void);
uint64_t mf_os_cpu_ns(void);    /* processor time of all threads of this process; a system call: a microsecond */
double mf_os_unix_time(void);   /* seconds */
unsigned mf_os_cpu_count(void); /* usable by this process */
void mf_os_yield(void);         /* lets another thread run */
/* A memory barrier in every running thread of this process, so that the threads need none in what they do often. ready:
 * asks the system for it; false: it has none (then every thread needs its own). */
bool mf_os_barrier_ready(void);
void mf_os_barrier(void);
uint64_t mf_os_page_bytes(void);
long mf_os_process(void); /* its number, for telling a child of fork from its parent */
/* Whole pages of private memory are all zeros in a child of fork, or (false) as in the parent again. Does nothing where
 * the system cannot. */
void mf_os_empty_in_child(void *pages, size_t bytes, bool empty);

/* Memory as the kernel counts it, in bytes. */
typedef struct mf_os_memory {
    uint64_t rss_anon, rss_shmem, rss_file, vm_hwm;
} mf_os_memory;
memfit_status mf_os_process_memory(mf_os_memory *memory, memfit_error *err); /* of this process; no allocation */
/* How far the kernel's counters of resident pages, read from outside, may lie beside the truth: they are kept per
 * processor (since 6.2; per thread before) and were summed up for a reader only from 6.17 on. */
uint64_t mf_os_counter_error_bytes(void);
/* What this process may still take: MemAvailable, lowered by the limits of its cgroups (v1 and v2) and by `ulimit -v`
 * and `ulimit -d`. */
uint64_t mf_os_available_memory(void);
/* What a cgroup really uses: its count less what the kernel would drop when memory is short, as its memory.stat says
 * (files that were read are in the count). */
uint64_t mf_os_cgroup_used(uint64_t current, const char *stat);
/* The polite limit of its cgroups (memory.high, soft_limit_in_bytes): exceeded, the kernel reclaims and slows down
 * instead of killing, so whoever lowers it asks the process to become smaller. UINT64_MAX: none. */
uint64_t mf_os_soft_limit(void);
uint64_t mf_os_total_memory(void); /* of the machine, or of the tightest cgroup if that is less */

/* Address space for `bytes` with a page behind it that traps. No page is resident yet. `*mapped` is the begin; the
 * whole has bytes, rounded up to pages, plus one page. */
memfit_status mf_os_reserve(uint64_t bytes, unsigned char **mapped, uint64_t *mapped_bytes, memfit_error *err);
void mf_os_unreserve(unsigned char *mapped, uint64_t mapped_bytes);
void mf_os_populate(unsigned char *mapped, uint64_t bytes); /* makes every page resident and writable */

/* A file of `bytes` without a name in $TMPDIR or /var/tmp (not /tmp, which may be memory), mapped for reading and
 * writing: memory that belongs to the disk, not to the process. Disk space is taken at once, so a full disk is an error
 * (IO) here and not a signal later. */
memfit_status mf_os_spool_map(uint64_t bytes, unsigned char **data, memfit_error *err);
void mf_os_spool_unmap(unsigned char *data, uint64_t bytes);
/* The same of a size that is not known yet: written from front to end, then mapped. */
typedef struct mf_spool {
    int descriptor; /* -1: not open */
    uint64_t bytes;
} mf_spool;
memfit_status mf_os_spool_open(mf_spool *spool, memfit_error *err);
memfit_status mf_os_spool_write(mf_spool *spool, const void *data, uint64_t bytes, memfit_error *err);
/* What was written, and closes the spool; `*data` is to be unmapped with mf_os_spool_unmap. */
memfit_status mf_os_spool_finish(mf_spool *spool, unsigned char **data, memfit_error *err);
void mf_os_spool_drop(mf_spool *spool);
/* The next bytes of standard input, all of them unless it ends before: how many. */
uint64_t mf_os_read_input(void *out, uint64_t bytes);
/* A new folder there that is this user's alone: its path; false when there is none. */
bool mf_os_temporary_folder(char *path, size_t size);
void mf_os_remove_folder(const char *path); /* if it is empty */

/* Terminal width in columns, 0 when `file` is no terminal. */
unsigned mf_os_terminal_columns(FILE *file);

#endif
