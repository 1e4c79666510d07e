/* spool.h: temporary files without a name, mapped: memory that belongs to the disk, not to the process. */
#ifndef MF_DATA_SPOOL_H
#define MF_DATA_SPOOL_H

#include "memfit/base.h"

/* A file of `bytes` in $TMPDIR or /var/tmp (not /tmp, which may be memory), already unlinked, mapped for reading and
 * writing. Unmapping it ends it. IO says when the disk is full. */
memfit_status mf_spool_map(uint64_t bytes, unsigned char **data, memfit_error *err);
void mf_spool_unmap(unsigned char *data, uint64_t bytes);

#endif
