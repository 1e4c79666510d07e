/* real.h: names for a kernel body compiled for one type. Included (without guard) by each *_body.h; the including .c
 * defines REF_DOUBLE to 0 or 1. */
#undef REAL
#undef FN
#undef KERNEL
#if REF_DOUBLE
#define REAL     double
#define FN(name) name##_f64
#else
#define REAL     float
#define FN(name) name##_f32
#endif
#define KERNEL(name) memfit_status FN(mf_ref_##name)(mf_ref_call * call, memfit_error * err)
