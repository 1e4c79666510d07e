/*
 * torch_frames.h: how a name of ours is a stack of PyTorch's, in both directions: write_viz.c writes, trace_torch.c reads.
 *
 *     "f (a.py:3) < g (b.py:9)"   is the frames f and g, the called one first
 *     any other name               is one frame of that name in the file "<memfit>"
 *     a kind but "other"           is a last frame of its name in the file "<memfit kind>"
 */
#ifndef MF_TRACE_TORCH_FRAMES_H
#define MF_TRACE_TORCH_FRAMES_H

#include "memfit/base.h"

#define MF_TORCH_NAME_FILE "<memfit>"
#define MF_TORCH_KIND_FILE "<memfit kind>"
#define MF_TORCH_NOTE      "memfit:" /* user_metadata of a note that is no mark: then the op's name */
enum { MF_TORCH_STACK = 3 /* frames of a stack in a name */, MF_TORCH_MOST_FRAMES = MF_TORCH_STACK };

typedef struct mf_torch_frame {
    const char *name;
    size_t name_bytes;
    const char *file;
    size_t file_bytes;
    uint64_t line;
} mf_torch_frame;

/* The frames of a name, which they point into; 0 for "". */
unsigned mf_torch_split(const char *name, mf_torch_frame frames[MF_TORCH_MOST_FRAMES]);
/* Bytes of the UTF-8 character at text; 0: there is none. */
unsigned mf_trace_utf8_step(const char *text, size_t bytes);

#endif
