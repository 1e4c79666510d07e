/* kernels_table.c: the table of one instruction set; compiled once for each. */
#include "ops/cpu/kernels/kernels_isa.h"

#define TEXT2(x) #x
#define TEXT(x)  TEXT2(x)

const mf_kernel_table *MF_K(table)(void);
const mf_kernel_table *MF_K(table)(void)
{
    static const mf_kernel_table table = {TEXT(MF_ISA),
#define X(type, name, arguments) MF_K(name),
                                          MF_KERNEL_LIST(X)
#undef X
    };
    return &table;
}
