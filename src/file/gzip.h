/* gzip.h: files packed whole by gzip or zlib, as TFRecord files often are: unpacked from front to end, in constant memory. */
#ifndef MF_FILE_GZIP_H
#define MF_FILE_GZIP_H

#include "memfit/base.h"

bool mf_gzip_sniff(const unsigned char *data, uint64_t bytes);
/* Unpacks all parts of the file; into `out` of `room` bytes, or nowhere when that is NULL. *unpacked is how many bytes it
 * holds. DAMAGED names the place; so does a file that holds more than `room`. */
memfit_status mf_gzip_unpack(const memfit_host *host, const unsigned char *data, uint64_t bytes, const char *name,
                             unsigned char *out, uint64_t room, uint64_t *unpacked, memfit_error *err);

#endif
