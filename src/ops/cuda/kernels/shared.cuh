/* shared.cuh: the reference's own text: what operations mean, in double. Bodies that walk whole tensors are left out
 * (their headers are empty here). Everything is inside a namespace, so that only what a kernel calls is compiled. */
namespace {
double mf_ref_load(mf_dtype dtype, const void *data, uint64_t index);
int64_t mf_ref_load_int(mf_dtype dtype, const void *data, uint64_t index);
#include "ops/reference/convert.c"
#include "base/philox.c"
#include "ops/reference/draw.c"
#include "ops/reference/unary.c"
#include "ops/reference/ref_pointwise.c"
#include "ops/reference/loss_value.h"
namespace losses {
#include "ops/reference/loss_value.c"
}
using losses::mf_loss_row_value;
namespace batches {
#include "ops/reference/ref_loss.c"
}
namespace updates {
#include "ops/reference/ref_update.c"
}
namespace resizes {
#include "ops/reference/ref_resize.c"
}
namespace images {
#include "ops/reference/ref_augment.c"
}
namespace windows {
#include "ops/reference/ref_window.c"
}
namespace norms {
#include "ops/reference/ref_norm.c"
}
}
