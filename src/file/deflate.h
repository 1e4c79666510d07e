/* deflate.h: bytes made smaller, as a zlib stream. */
#ifndef MF_FILE_DEFLATE_H
#define MF_FILE_DEFLATE_H

#include "base/memory.h"

/* Compresses into memory of the arena. NO_HOST_MEMORY; UNSUPPORTED above 2 GiB. */
memfit_status mf_deflate(mf_arena *arena, const void *data, size_t bytes, unsigned char **out, size_t *out_bytes,
                         memfit_error *err);

#endif
