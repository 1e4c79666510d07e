/* torch_frames.c: see torch_frames.h, and what the writers of traces share. */
#include "trace/torch_frames.h"

#include "trace/trace_write.h"

#include "base/visible.h"

#include <ctype.h>
#include <string.h>

static bool is_python(const char *file, size_t n)
{
    return n >= 4 && (memcmp(file + n - 3, ".py", 3) == 0 || file[0] == '<') && memchr(file, '/', n) == NULL;
}

/* "train_step (model.py:42)": false when it is not of this form, or would not come back the same. */
static bool split_frame(const char *text, size_t n, mf_torch_frame *frame)
{
    enum { MOST = 60 }; /* what the reader takes of a name */
    if (n < 8 || text[n - 1] != ')')
        return false;
    size_t digits = 0;
    while (digits < n - 1 && isdigit((unsigned char)text[n - 2 - digits]))
        digits++;
    if (!digits || digits > 9 || text[n - 2 - digits] != ':' || (digits > 1 && text[n - 1 - digits] == '0'))
        return false;
    size_t colon = n - 2 - digits, open = colon;
    while (open > 0 && text[open] != '(')
        open--;
    if (open < 2 || text[open - 1] != ' ')
        return false;
    *frame = (mf_torch_frame){text, open - 1, text + open + 1, colon - open - 1, 0};
    for (size_t i = colon + 1; i < n - 1; i++)
        frame->line = frame->line * 10 + (uint64_t)(text[i] - '0');
    return frame->name_bytes <= MOST && frame->file_bytes <= MOST && is_python(frame->file, frame->file_bytes) &&
           !memmem(frame->file, frame->file_bytes, "<frozen", 7) &&
           !memmem(frame->file, frame->file_bytes, "<memfit", 7);
}

unsigned mf_torch_split(const char *name, mf_torch_frame frames[MF_TORCH_MOST_FRAMES])
{
    size_t n = strlen(name);
    unsigned count = 0;
    if (!n)
        return 0;
    for (const char *p = name, *end; p; p = *end ? end + 3 : NULL) {
        end = strstr(p, " < ");
        end = end ? end : name + n;
        if (count == MF_TORCH_STACK || !split_frame(p, (size_t)(end - p), &frames[count++])) {
            frames[0] = (mf_torch_frame){name, n, MF_TORCH_NAME_FILE, strlen(MF_TORCH_NAME_FILE), 0};
            return 1;
        }
    }
    return count;
}

unsigned mf_trace_utf8_step(const char *text, size_t bytes)
{
    uint32_t code;
    bool plain;
    if ((unsigned char)*text < 0x80)
        return 1;
    size_t n = mf_visible_step(text, bytes, &code, &plain);
    return n > 1 ? (unsigned)n : 0;
}

const char *mf_trace_view_name(const mf_trace_view *view, uint32_t name, char *text, size_t bytes)
{
    return view->name ? view->name(view->ctx, name, text, bytes) : memfit_trace_name(view->trace, name);
}
