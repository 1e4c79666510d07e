/* lower_ops.c: nodes of a functional model that are operations, not layers: x + y, keras.ops.relu(x), x[:, 0]. */
#include "model/lower_inner.h"

#include <string.h>

static const mf_class_row operations[] = {
    {"Add", mf_lower_add, MF_CLASS_KEEPS_TYPES, "binary"},
};

const mf_class_row *mf_operation_table(uint32_t *count)
{
    *count = sizeof operations / sizeof *operations;
    return operations;
}

const mf_class_row *mf_operation_find(const char *name)
{
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (strcmp(operations[i].name, name) == 0)
            return &operations[i];
    return NULL;
}
