/*
 * abi.h: public structs between a program and a library of another version. Such a struct begins with `size_t size`,
 * set by the caller's compiler through an initializer macro, and grows only at its end. So the library reads no further
 * and writes no further than the caller's struct reaches.
 */
#ifndef MF_BASE_ABI_H
#define MF_BASE_ABI_H

#include "memfit/base.h"

/* Copies the caller's options over `into`, which holds the defaults of this version and its own size. `given` NULL:
 * the defaults. INVALID for a size that cannot be one, UNSUPPORTED for a setting that this version does not know. */
memfit_status mf_abi_read(void *into, const void *given, const char *macro, memfit_error *err);
/* INVALID unless out->size is plausible: called before anything else happens, so that a failed call changes nothing. */
memfit_status mf_abi_check(const void *out, const char *macro, memfit_error *err);
/* Copies `from` (`bytes` long) into the caller's result as far as that reaches; its size stays. */
void mf_abi_write(void *out, const void *from, size_t bytes);
/* The same for element `i` of an array whose elements lie `stride` bytes apart. Elements have no size of their own. */
void mf_abi_put(void *list, size_t stride, size_t i, const void *from, size_t bytes);

#endif
