/*
 * test_tables.c: docs/operations.md and docs/layers.md are written from the tables in the code; this test compares
 * them, and with MEMFIT_WRITE_DOCS=1 writes them anew.
 */
#include "test.h"

#include "graph/kinds/kinds.h"
#include "model/lower/lower_inner.h"
#include "ops/reference/reference.h"

static char *read_text(const char *name)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", getenv("MEMFIT_SOURCE"), name);
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (file) {
        size_t n = fread(text, 1, (1 << 20) - 1, file);
        text[n] = 0;
        fclose(file);
    }
    return text;
}

/* Cuts the last column off every row: which kinds have a fast kernel changes with the backends, and a page that lags
 * behind there for a while is no failure. */
static char *without_last_column(const char *text)
{
    char *cut = calloc(1, strlen(text) + 1), *to = cut;
    for (const char *line = text; *line;) {
        const char *end = strchr(line, '\n');
        size_t n = end ? (size_t)(end - line) : strlen(line), keep = n;
        if (n > 2 && line[0] == '|' && line[n - 1] == '|')
            for (keep = n - 1; keep && line[keep - 1] != '|';)
                keep--;
        memcpy(to, line, keep);
        to += keep;
        line = end ? end + 1 : line + n;
    }
    return cut;
}

static void compare(const char *name, const char *made, bool all)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", getenv("MEMFIT_SOURCE"), name);
    if (getenv("MEMFIT_WRITE_DOCS")) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        fputs(made, file);
        fclose(file);
    }
    char *there = read_text(name), *a = without_last_column(there), *b = without_last_column(made);
    if (all ? strcmp(there, made) : strcmp(a, b))
        fail_msg("%s is out of date: run tests/test_tables with MEMFIT_WRITE_DOCS=1", name);
    free(a);
    free(b);
    free(there);
}

static const char *const ids[] = {
#define X(name, text, operands) #name,
    MF_OP_LIST(X)
#undef X
};

static void inplace_text(const mf_kind_row *row, char *text, size_t bytes)
{
    if (row->must_alias)
        snprintf(text, bytes, "always");
    else if (row->inplace_in == MF_NONE)
        text[0] = 0;
    else
        snprintf(text, bytes, "operand %u", row->inplace_in + 1);
}

static void operations_page(void **state)
{
    (void)state;
    if (!getenv("MEMFIT_SOURCE"))
        skip();
    char *made = NULL, *fast = read_text("src/ops/cpu/cpu_backend.c"), text[64], label[64];
    size_t bytes;
    FILE *out = open_memstream(&made, &bytes);
    fputs("# Operations\n\n"
          "Written from the table in `src/graph/kinds/kinds.c` by `tests/unit/test_tables.c`; do not edit. Operands in "
          "brackets may be\n"
          "absent. *In place*: the result may take the bytes of that operand when nothing reads it afterwards. *Adds*: "
          "may add\n"
          "into a gradient variable (pieces of a batch). *Again*: may be recomputed with the same result. Every "
          "gradient is\n"
          "checked against finite differences in double (`tests/ops/test_ops_gradients.c`), every layer against Keras\n"
          "(`tests/ops/test_ops_keras.c`). *Fast*: oneDNN or an own vector kernel; blank: the reference runs, being "
          "rare or\n"
          "small. A blank gradient has its reason.\n\n"
          "| kind | operands | in place | adds | again | gradient | reference | fast "
          "|\n|---|---|---|---|---|---|---|---|\n",
          out);
    for (unsigned k = 0; k < MF_OP_COUNT; k++) {
        const mf_kind_rules *rules = mf_kind_rules_of((mf_op_kind)k);
        assert_non_null(rules->shape);
        assert_true(rules->gradient || rules->no_gradient);
        inplace_text(&rules->row, text, sizeof text);
        snprintf(label, sizeof label, "[MF_OP_%s] =", ids[k]);
        fprintf(out, "| `%s` | %s | %s | %s | %s | %s | %s | %s |\n", mf_kind_name((mf_op_kind)k),
                mf_kind_operands((mf_op_kind)k), text, rules->row.accumulates ? "yes" : "",
                rules->row.recomputable ? "yes" : "", rules->gradient ? "yes" : rules->no_gradient,
                mf_ref_row_of((mf_op_kind)k) ? "yes"
                : k == MF_OP_ASSUMED         ? "cannot run"
                                             : "",
                strstr(fast, label) ? "yes" : "");
    }
    fclose(out);
    compare("docs/operations.md", made, false);
    free(made);
    free(fast);
}

static void rows(FILE *out, const mf_class_row *table, uint32_t count, bool supported)
{
    for (uint32_t i = 0; i < count; i++)
        if (!!table[i].rule == supported)
            fprintf(out, "| %s | %s |\n", table[i].name, table[i].how);
}

static void layers_page(void **state)
{
    (void)state;
    if (!getenv("MEMFIT_SOURCE"))
        skip();
    char *made = NULL;
    size_t bytes;
    uint32_t count, shape_count;
    const mf_class_row *classes = mf_class_table(&count), *moves = mf_shape_operation_table(&shape_count);
    FILE *out = open_memstream(&made, &bytes);
    fputs("# Layers\n\n"
          "Written from the tables in `src/model/lower/lower_table.c`, `lower_ops.c` and `lower_ops_shape.c` by\n"
          "`tests/unit/test_tables.c`; do not edit. What a class becomes in the step graph:\n\n"
          "| class | operations |\n|---|---|\n",
          out);
    rows(out, classes, count, true);
    fputs(
        "\nSequential and Functional models nest to any depth. A layer that is called several times shares its "
        "weights.\n"
        "Stateful recurrent layers, LoRA and quantized weights are refused. The constraints of Keras (max_norm, "
        "min_max_norm,\n"
        "unit_norm, non_neg) are obeyed. Constraints of one's own, and activity regularizers of a layer inside\n"
        "Bidirectional, can be planned with, not trained with; the same holds for the colour augmentations.\n\n"
        "## Classes of Keras without a rule\n\n"
        "Such a layer, a Lambda or a class of the model's own author ends with exit status 4 and its name;\n"
        "`--assume LAYER=SHAPE[:BYTES]` lets a plan be made with a stated assumption.\n\n| class | why |\n|---|---|\n",
        out);
    rows(out, classes, count, false);
    fputs("\n## Operation nodes\n\nNodes of a functional model that are no layers: `x + y`, `keras.ops.mean(x)`, `x[:, "
          "0]`.\n"
          "Beside these: Negative, Abs, Square, Sqrt, Rsqrt, Exp, Log, Sin, Cos, Tanh, Sign, Floor, Reciprocal, Erf "
          "and every\n"
          "activation of keras.ops.nn.\n\n| class | operations |\n|---|---|\n",
          out);
    rows(out, mf_operation_rows, mf_operation_row_count, true);
    rows(out, moves, shape_count, true);
    fclose(out);
    compare("docs/layers.md", made, true);
    free(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(operations_page), cmocka_unit_test(layers_page)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
