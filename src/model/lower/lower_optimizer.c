/*
 * lower_optimizer.c: the optimizer of the file, of the options, or Adam by assumption; and the optimizer state the file
 * stores, matched to the variables. Checkpoints write by the same order (mf_keras_optimizer_order).
 *
 * Keras 3 stores: iteration, learning_rate (not with a schedule), averages, accumulators, then the slots: interleaved
 * per weight within one group (Adam: m0, v0, m1, v1 ...), group after group (RMSprop: all velocities, then all
 * momentums; Adafactor: row, column, velocity per weight, with
 * integer zeros for the rows and columns of vectors; Nadam: its product of momenta at the end). The match is by count
 * and shape, all or nothing: state of another shape is left out, as Keras does.
 */
#include "base/error.h"
#include "model/lower/lower_compile.h"
#include "model/lower/lower_keys.h"

#include <string.h>

static void number(const mf_json *config, const char *key, double *value)
{
    const mf_json *v = mf_json_get(config, key);
    if (v && v->type == MF_JSON_NUMBER)
        *value = v->number;
}

static void read_settings(const mf_json *config, mf_optimizer_settings *s)
{
    mf_update_attr *u = &s->update;
    number(config, "momentum", &u->momentum);
    number(config, "rho", &u->rho);
    number(config, "beta_1", &u->beta_1);
    number(config, "beta_2", &u->beta_2);
    number(config, "beta_2_decay", &u->beta_2);
    number(config, "epsilon", &u->epsilon);
    number(config, "epsilon_1", &u->epsilon);
    number(config, "epsilon_2", &u->epsilon_2);
    number(config, "clip_threshold", &u->clip_threshold);
    number(config, "initial_accumulator_value", &u->initial);
    number(config, "learning_rate_power", &u->learning_rate_power);
    number(config, "l1_regularization_strength", &u->l1);
    number(config, "l2_regularization_strength", &u->l2);
    number(config, "l2_shrinkage_regularization_strength", &u->l2_shrinkage);
    number(config, "beta", &u->beta);
    u->relative_step = mf_json_get_bool(config, "relative_step", u->relative_step != 0);
    u->nesterov = mf_json_get_bool(config, "nesterov", false);
    u->centered = mf_json_get_bool(config, "centered", false);
    u->amsgrad = mf_json_get_bool(config, "amsgrad", false);
    const mf_json *decay = mf_json_get(config, "weight_decay");
    if (decay && decay->type == MF_JSON_NUMBER) {
        u->weight_decay = decay->number;
        u->has_weight_decay = decay->number != 0;
    }
    number(config, "clipnorm", &s->clip_norm);
    number(config, "global_clipnorm", &s->global_clip_norm);
    number(config, "clipvalue", &s->clip_value);
    s->ema = mf_json_get_bool(config, "use_ema", false);
    number(config, "ema_momentum", &s->ema_momentum);
    int64_t every = mf_json_get_integer(config, "ema_overwrite_frequency", 0);
    s->ema_overwrite = every > 0 && every < INT32_MAX ? (uint32_t)every : 0;
    int64_t steps = mf_json_get_integer(config, "gradient_accumulation_steps", 0);
    s->accumulation_steps = steps > 1 && steps < INT32_MAX ? (uint32_t)steps : 0;
}

static const int growth_steps = 2000; /* after so many steps without overflow the loss scale doubles (ops/scalars.c) */

static bool choose(mf_lowering *lo, mf_optimizer_settings *settings)
{
    mf_graph *g = lo->b.graph;
    const mf_json *scaling, *spec = mf_keras_optimizer(lo->root->compile, &scaling);
    const char *in_file = mf_config_name(spec), *name = lo->options->optimizer ? lo->options->optimizer : in_file;
    char plain[64], plain_file[64];
    mf_optimizer optimizer;
    g->optimizer_assumed = !name;
    mf_plain_name(name ? name : "adam", plain, sizeof plain);
    mf_plain_name(in_file ? in_file : "", plain_file, sizeof plain_file);
    if (!mf_optimizer_parse(plain, &optimizer)) {
        if (g->mode == MF_MODE_TRAIN)
            mf_build_fail(&lo->b, MEMFIT_UNSUPPORTED,
                          "optimizer '%s' is not known\nName one with --optimizer, e.g. adam, sgd, rmsprop, adamw",
                          name);
        return false;
    }
    mf_optimizer_defaults(optimizer, settings);
    g->optimizer_given = strcmp(plain, plain_file) != 0;
    if (!g->optimizer_given) {
        const mf_json *config = mf_json_get(spec, "config"), *key = mf_dropped_key(MF_KEYS_OPTIMIZER, plain, config);
        char text[160];
        if (key && g->mode == MF_MODE_TRAIN) {
            mf_build_fail(&lo->b, MEMFIT_UNSUPPORTED, "optimizer '%s': %s is not supported\nName one with --optimizer",
                          name, mf_key_text(key, text, sizeof text));
            return false;
        }
        read_settings(config, settings);
        if (lo->float16 && g->mode == MF_MODE_TRAIN &&
            mf_json_get_integer(scaling, "dynamic_growth_steps", growth_steps) != growth_steps) {
            mf_build_fail(&lo->b, MEMFIT_UNSUPPORTED,
                          "optimizer 'LossScaleOptimizer': dynamic_growth_steps other than %d is not supported\nName "
                          "the optimizer with --optimizer",
                          growth_steps);
            return false;
        }
    }
    g->optimizer = optimizer;
    g->optimizer_name = mf_optimizer_name(optimizer);
    return true;
}

/* ---- stored state ---- */

static void list(const mf_graph *g, mf_var_role role, uint32_t first_slot, uint32_t last_slot, uint32_t *variables,
                 uint32_t *count)
{
    for (uint32_t i = 0; i < g->variable_count; i++) {
        const mf_variable *v = &g->variables[i];
        if (v->role == role && (role != MF_VAR_SLOT || (v->slot >= first_slot && v->slot <= last_slot)))
            variables[(*count)++] = i;
    }
}

uint32_t mf_keras_optimizer_order(const mf_graph *g, uint32_t *variables)
{
    uint32_t count = 0;
    list(g, MF_VAR_EMA, 0, 0, variables, &count);
    if (g->accumulation_steps)
        list(g, MF_VAR_GRADIENT, 0, 0, variables, &count);
    if (g->optimizer == MF_OPTIMIZER_ADAFACTOR) {
        list(g, MF_VAR_SLOT, 0, 2, variables, &count);
        return count;
    }
    bool groups = g->optimizer == MF_OPTIMIZER_RMSPROP;
    list(g, MF_VAR_SLOT, 0, groups ? 0 : 1, variables, &count);
    if (groups)
        list(g, MF_VAR_SLOT, 1, 1, variables, &count);
    uint32_t third = count;
    list(g, MF_VAR_SLOT, 2, 2, variables, &count);
    if (g->optimizer == MF_OPTIMIZER_NADAM && count > third)
        count = third + 1; /* its product of momenta: one for all in Keras, and the same number in each here */
    return count;
}

static void match_stored(mf_lowering *lo, const uint32_t *variables, uint32_t count)
{
    mf_graph *g = lo->b.graph;
    const mf_model *m = lo->root;
    uint32_t own = m->optimizer_count - count; /* iteration, and the rate unless a schedule gives it */
    if (m->optimizer_count <= count || own > 2)
        return;
    for (uint32_t i = 0; i < count; i++)
        if (!mf_shape_equal(&m->optimizer[own + i].shape, &g->variables[variables[i]].shape))
            return;
    for (uint32_t i = 0; i < count; i++)
        g->variables[variables[i]].stored = &m->optimizer[own + i];
    g->keeps_rate = own == 2;
    g->optimizer_stored = true;
}

/* Keras 2.12 to 2.15 and schedules keep no rate among the variables. */
static bool find_stored(mf_lowering *lo)
{
    mf_graph *g = lo->b.graph;
    uint32_t *variables = MF_NEW_ARRAY(&g->arena, uint32_t, g->variable_count + 1);
    if (!variables)
        return mf_build_fail(&lo->b, MEMFIT_NO_HOST_MEMORY, "no host memory for the optimizer's variables"), false;
    const mf_json *rate =
        mf_json_get(mf_json_get(mf_keras_optimizer(lo->root->compile, NULL), "config"), "learning_rate");
    g->keeps_rate = !lo->keras2 && (g->optimizer_given || !rate || rate->type == MF_JSON_NUMBER);
    if (!g->optimizer_given)
        match_stored(lo, variables, mf_keras_optimizer_order(g, variables));
    return true;
}

bool mf_lower_optimizer(mf_lowering *lo, mf_optimizer_settings *settings)
{
    if (!choose(lo, settings))
        return false;
    mf_graph *g = lo->b.graph;
    settings->loss_scale = lo->float16;
    g->accumulation_steps = settings->accumulation_steps;
    g->average_every = settings->ema ? settings->ema_overwrite : 0;
    if (settings->accumulation_steps && g->mode == MF_MODE_TRAIN)
        g->accumulate = true;
    mf_optimizer_variables(&lo->b, settings);
    return !mf_build_ok(&lo->b) || find_stored(lo);
}
