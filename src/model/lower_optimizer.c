/*
 * lower_optimizer.c: the optimizer of the file, of the options, or Adam by assumption; and the optimizer state the file
 * stores, matched to the variables.
 *
 * Keras 3 stores: iteration, learning_rate (not with a schedule), averages, accumulators, then the slots: interleaved
 * per weight within one group (Adam: m0, v0, m1, v1 ...), group after group (RMSprop: all velocities, then all
 * momentums). The match is by count and shape, all or nothing: state of another shape is left out, as Keras does.
 */
#include "base/error.h"
#include "model/lower_compile.h"

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
    int64_t steps = mf_json_get_integer(config, "gradient_accumulation_steps", 0);
    s->accumulation_steps = steps > 1 && steps < INT32_MAX ? (uint32_t)steps : 0;
}

/* The file's optimizer; loss-scaling wrappers are looked through. */
static const mf_json *file_optimizer(const mf_lowering *lo)
{
    const mf_json *spec = mf_json_get(lo->root->compile, "optimizer");
    const char *name = mf_config_name(spec);
    if (name && strcmp(name, "LossScaleOptimizer") == 0)
        spec = mf_json_get(mf_json_get(spec, "config"), "inner_optimizer");
    return spec;
}

static bool choose(mf_lowering *lo, mf_optimizer_settings *settings)
{
    mf_graph *g = lo->b.graph;
    const mf_json *spec = file_optimizer(lo);
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
    if (strcmp(plain, plain_file) == 0)
        read_settings(mf_json_get(spec, "config"), settings);
    g->optimizer = optimizer;
    g->optimizer_name = mf_optimizer_name(optimizer);
    return true;
}

/* ---- stored state ---- */

typedef struct matcher {
    mf_graph *g;
    const mf_model *model;
    uint32_t next;
    bool ok;
} matcher;

static void take(matcher *m, mf_variable *v)
{
    if (!m->ok || m->next >= m->model->optimizer_count) {
        m->ok = false;
        return;
    }
    const mf_stored *stored = &m->model->optimizer[m->next++];
    m->ok = mf_shape_equal(&stored->shape, &v->shape);
    v->stored = stored;
}

static void take_role(matcher *m, mf_var_role role, uint32_t first_slot, uint32_t last_slot)
{
    for (uint32_t i = 0; i < m->g->variable_count; i++) {
        mf_variable *v = &m->g->variables[i];
        if (v->role == role && (role != MF_VAR_SLOT || (v->slot >= first_slot && v->slot <= last_slot)))
            take(m, v);
    }
}

static void match_stored(mf_lowering *lo, const mf_optimizer_settings *s)
{
    mf_graph *g = lo->b.graph;
    const mf_json *rate = mf_json_get(mf_json_get(file_optimizer(lo), "config"), "learning_rate");
    bool has_rate = !lo->keras2 && (!rate || rate->type == MF_JSON_NUMBER);
    matcher m = {.g = g, .model = lo->root, .next = has_rate ? 2 : 1, .ok = lo->root->optimizer_count > 0};
    if (s->update.optimizer == MF_OPTIMIZER_NADAM || s->update.optimizer == MF_OPTIMIZER_ADAFACTOR || !m.ok)
        return; /* their extra scalars are stored in another way */
    if (s->ema)
        take_role(&m, MF_VAR_EMA, 0, 0);
    if (s->accumulation_steps)
        take_role(&m, MF_VAR_GRADIENT, 0, 0);
    bool groups = s->update.optimizer == MF_OPTIMIZER_RMSPROP;
    if (groups)
        take_role(&m, MF_VAR_SLOT, 0, 0);
    else
        take_role(&m, MF_VAR_SLOT, 0, 1);
    if (groups)
        take_role(&m, MF_VAR_SLOT, 1, 1);
    take_role(&m, MF_VAR_SLOT, 2, 2);
    if (m.ok && m.next == lo->root->optimizer_count)
        return;
    for (uint32_t i = 0; i < g->variable_count; i++)
        if (g->variables[i].role == MF_VAR_SLOT || g->variables[i].role == MF_VAR_EMA ||
            g->variables[i].role == MF_VAR_GRADIENT)
            g->variables[i].stored = NULL;
}

bool mf_lower_optimizer(mf_lowering *lo, mf_optimizer_settings *settings)
{
    if (!choose(lo, settings))
        return false;
    mf_graph *g = lo->b.graph;
    settings->loss_scale = lo->float16;
    if (settings->accumulation_steps && g->mode == MF_MODE_TRAIN) {
        g->accumulate = true;
        g->accumulation_steps = settings->accumulation_steps;
    }
    mf_optimizer_variables(&lo->b, settings);
    if (mf_build_ok(&lo->b))
        match_stored(lo, settings);
    return true;
}
