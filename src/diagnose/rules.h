/*
 * rules.h: which driver, toolkit, cuDNN, framework and GPU generation go together. Tables of facts from NVIDIA's
 * release notes and support matrices and TensorFlow's tested builds, and the questions asked of them. Versions are
 * compared in full, never by branch: "580.65.06" is {580, 65, 6}.
 */
#ifndef MF_DIAGNOSE_RULES_H
#define MF_DIAGNOSE_RULES_H

#include "memfit/base.h"

typedef struct mf_version {
    unsigned part[4];
} mf_version;

mf_version mf_version_parse(const char *text); /* "13.0", "580.159.04", "2.11.0+cu130": what is missing is 0 */
int mf_version_compare(mf_version a, mf_version b);
char *mf_version_format(mf_version v, char *text, size_t bytes); /* without trailing zeros, at least two parts */

/* The lowest driver NVIDIA ships with a toolkit ("12.4" is 550.54.14); false for a toolkit not in the table. `update`
 * counts from 0; one not in the table gives the highest known update's. */
bool mf_driver_of_toolkit(unsigned major, unsigned minor, unsigned update, mf_version *driver);

typedef enum {
    MF_DRIVER_OK,      /* at least the toolkit's own driver */
    MF_DRIVER_MINOR,   /* older, but minor-version compatibility serves: no PTX of a newer minor, no newer features */
    MF_DRIVER_TOO_OLD, /* does not run */
} mf_driver_state;
/* Does a program built with this toolkit run on this driver? `wanted` gets the lowest driver that would do. */
mf_driver_state mf_driver_for_toolkit(mf_version driver, unsigned major, unsigned minor, mf_version *wanted);
/* The newest CUDA a driver serves, "13.0" as {13, 0}; from the table, for a driver whose NVML does not say. */
mf_version mf_newest_cuda_of_driver(mf_version driver);

/* First and last toolkit with code for a compute capability (90 is 9.0); last {0} while it is current. False: unknown.
 */
bool mf_toolkits_of_capability(unsigned capability, mf_version *first, mf_version *last);

typedef struct mf_tensorflow_build {
    unsigned minor; /* TensorFlow 2.minor */
    mf_version cuda, cudnn, python_least, python_most;
} mf_tensorflow_build;
const mf_tensorflow_build *mf_tensorflow_build_of(unsigned minor); /* NULL: not in the table */

/* Which CUDA majors and capabilities a cuDNN serves. */
typedef struct mf_cudnn_row {
    mf_version least, most; /* cuDNN versions of this row */
    mf_version cuda_least, cuda_most;
    mf_version driver;
    unsigned capability_least, capability_most;
} mf_cudnn_row;
/* The row for a cuDNN on a CUDA and a capability; NULL when the matrix has none: not supported, or newer than the
 * table. */
const mf_cudnn_row *mf_cudnn_row_of(mf_version cudnn, mf_version cuda, unsigned capability);
bool mf_cudnn_known(mf_version cudnn); /* is this cuDNN in the matrix at all? */

/* TensorFlow's reserve beside its pool, by compute capability and free memory. */
uint64_t mf_tensorflow_reserve(unsigned capability, uint64_t free_bytes);

#endif
