/* plan_json.c: the answer as one JSON object. The keys are a contract; more may be added. */
#include "base/json.h"
#include "answer/plan_text.h"

static void put_breakdown(mf_json_writer *w, const mf_answer *a)
{
    static const memfit_kind kinds[] = {MEMFIT_KIND_PARAMETERS,  MEMFIT_KIND_GRADIENTS, MEMFIT_KIND_OPTIMIZER,
                                        MEMFIT_KIND_ACTIVATIONS, MEMFIT_KIND_INPUTS,    MEMFIT_KIND_WORKSPACE,
                                        MEMFIT_KIND_PADDING,     MEMFIT_KIND_FIXED};
    mf_json_open(w, "breakdown", '{');
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        mf_json_put_u64(w, memfit_kind_name(kinds[i]), a->breakdown[kinds[i]]);
    mf_json_close(w, '}');
}

static void put_layers(mf_json_writer *w, const mf_answer *a)
{
    mf_json_open(w, "layers", '[');
    for (uint32_t i = 1; i < a->layer_count; i++) {
        const mf_layer_row *row = &a->layers[i];
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "name", row->name);
        mf_json_put_string(w, "class", row->class_name);
        mf_json_open(w, "output_shape", '[');
        for (uint32_t d = 0; d < row->output_shape.rank; d++)
            d ? mf_json_put_i64(w, NULL, row->output_shape.dim[d]) : mf_json_put_null(w, NULL);
        mf_json_close(w, ']');
        mf_json_put_u64(w, "parameter_bytes", row->parameter_bytes);
        mf_json_put_u64(w, "saved_bytes", row->saved_bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_assumptions(mf_json_writer *w, const mf_answer *a)
{
    mf_json_open(w, "assumptions", '[');
    for (uint32_t i = 0; i < a->assumed_count; i++) {
        const mf_assumed_layer *l = &a->assumed[i];
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "layer", l->name);
        mf_json_put_string(w, "class", l->class_name);
        mf_json_open(w, "output_shape", '[');
        for (uint32_t d = 0; d < l->output_shape.rank; d++)
            d ? mf_json_put_i64(w, NULL, l->output_shape.dim[d]) : mf_json_put_null(w, NULL);
        mf_json_close(w, ']');
        mf_json_put_u64(w, "bytes", l->bytes);
        mf_json_put_u64(w, "parameter_bytes", l->parameter_bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_suggestions(mf_json_writer *w, const mf_answer *a)
{
    mf_json_open(w, "suggestions", '[');
    for (uint32_t i = 0; i < a->suggestion_count; i++) {
        const mf_suggestion *s = &a->suggestions[i];
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "change", s->change);
        mf_json_put_u64(w, "peak_bytes", s->peak_bytes);
        mf_json_put_double(w, "slowdown", s->slowdown);
        mf_json_put_string(w, "numerics", mf_numerics_name(s->numerics));
        mf_json_put_bool(w, "fits", s->fits);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_phases(mf_json_writer *w, const mf_plan *plan)
{
    mf_json_open(w, "phases", '[');
    for (uint32_t p = 0; p < plan->phase_count; p++) {
        const mf_phase *phase = &plan->phases[p];
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "name", mf_phase_name(phase->role));
        mf_json_put_i64(w, "batch", phase->batch);
        mf_json_put_i64(w, "runs", phase->repeat);
        mf_json_put_u64(w, "steps", phase->step_count);
        mf_json_put_u64(w, "recomputed_ops", phase->recomputed);
        mf_json_put_u64(w, "arena_bytes", phase->bytes);
        mf_json_put_u64(w, "max_load_bytes", plan->variables_end + phase->load_bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_curve(mf_json_writer *w, const mf_answer *a)
{
    if (!a->curve_count)
        return;
    mf_json_open(w, "curve", '[');
    for (uint32_t i = 0; i < a->curve_count; i++) {
        const mf_curve_point *p = &a->curve[i];
        mf_json_open(w, NULL, '{');
        mf_json_put_u64(w, "budget_bytes", p->budget_bytes);
        mf_json_put_bool(w, "fits", p->fits);
        mf_json_put_u64(w, "peak_bytes", p->peak_bytes);
        mf_json_put_double(w, "slowdown", p->slowdown);
        mf_json_put_i64(w, "pieces", p->pieces);
        mf_json_put_u64(w, "recomputed_ops", p->recomputed);
        mf_json_put_u64(w, "loss_chunks", p->chunks);
        mf_json_put_string(w, "numerics", mf_numerics_name(p->numerics));
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_bounds(mf_json_writer *w, const mf_answer *a)
{
    mf_json_open(w, "bounds", '{');
    mf_json_put_u64(w, "packing_bytes", a->packing_bound_bytes);
    mf_json_put_u64(w, "working_set_bytes", a->lower_bound_bytes);
    mf_json_put_u64(w, "save_set_bytes", a->save_set_bound_bytes);
    mf_json_put_double(w, "recompute_slowdown", a->recompute_bound);
    mf_json_close(w, '}');
}

static void put_owners(mf_json_writer *w, const mf_answer *a)
{
    mf_json_open(w, "owners", '[');
    for (uint32_t i = 0; i < a->owner_count; i++) {
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "layer", a->owners[i].layer);
        mf_json_put_string(w, "kind", memfit_kind_name(a->owners[i].kind));
        mf_json_put_u64(w, "bytes", a->owners[i].bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_framework_lines(mf_json_writer *w, const mf_in_framework *in)
{
    mf_json_open(w, "suggestions", '[');
    for (uint32_t i = 0; i < in->line_count; i++) {
        const mf_framework_line *line = &in->lines[i];
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "line", line->line);
        mf_json_put_u64(w, "peak_bytes", line->peak_bytes);
        mf_json_put_u64(w, "low_bytes", line->low_bytes);
        mf_json_put_u64(w, "high_bytes", line->high_bytes);
        mf_json_put_string(w, "numerics", mf_numerics_name(line->numerics));
        mf_json_put_string(w, "fits", mf_framework_fits_name(line->fits));
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

/* Whose memory the answer is about, and what is known of that program. */
static void put_framework(mf_json_writer *w, const mf_in_framework *in)
{
    const mf_framework_estimate *x = &in->estimate;
    mf_json_put_string(w, "runtime", mf_runtime_name(in->runtime));
    if (in->runtime == MF_RUNTIME_MEMFIT)
        return;
    mf_json_open(w, "in_framework", '{');
    mf_json_put_string(w, "runtime", mf_runtime_name(in->runtime));
    mf_json_put_string(w, "version", mf_runtime_version(in->runtime));
    if (in->known) {
        mf_json_put_string(w, "fits", mf_framework_fits_name(x->fits));
        mf_json_put_u64(w, "peak_bytes", x->peak_bytes);
        mf_json_put_u64(w, "low_bytes", x->low_bytes);
        mf_json_put_u64(w, "high_bytes", x->high_bytes);
        mf_json_put_u64(w, "live_bytes", x->live_bytes);
        mf_json_put_u64(w, "pool_bytes", x->pool_bytes);
        mf_json_put_u64(w, "fixed_bytes", x->fixed_bytes);
        mf_json_put_u64(w, "workspace_bytes", x->workspace_bytes);
        mf_json_put_string(w, "basis", x->basis);
        mf_json_put_i64(w, "max_batch", in->max_batch);
        if (in->max_input[0])
            mf_json_put_string(w, "max_input", in->max_input);
        else
            mf_json_put_null(w, "max_input");
        put_framework_lines(w, in);
    } else {
        mf_json_put_null(w, "fits");
        mf_json_put_string(w, "reason", in->reason);
    }
    mf_json_close(w, '}');
}

static void put_answer(mf_json_writer *w, const mf_answer *a, const mf_answer_context *c)
{
    const mf_plan *plan = a->plan;
    mf_json_open(w, "model", '{');
    mf_json_put_string(w, "name", c->model->name ? c->model->name : c->path);
    mf_json_put_u64(w, "layers", a->layer_count ? a->layer_count - 1 : 0);
    mf_json_put_u64(w, "parameters", a->parameter_count);
    mf_json_close(w, '}');
    mf_json_put_string(w, "device", c->device);
    mf_json_put_i64(w, "batch", plan->batch);
    mf_json_put_u64(w, "memory_bytes", c->memory_bytes);
    mf_json_put_string(w, "basis", c->basis);
    if (c->margin_percent)
        mf_json_put_u64(w, "fixed_margin_percent", c->margin_percent);
    mf_json_put_string(w, "optimizer", a->optimizer);
    mf_json_put_bool(w, "optimizer_assumed", a->optimizer_assumed);
    mf_json_put_string(w, "loss", a->loss);
    mf_json_put_bool(w, "loss_assumed", a->loss_assumed);
    put_assumptions(w, a);
    mf_json_put_bool(w, "fits", a->fits);
    mf_json_put_u64(w, "peak_bytes", plan->peak_bytes);
    mf_json_put_u64(w, "arena_bytes", plan->arena_bytes);
    mf_json_put_u64(w, "fixed_bytes", plan->fixed_bytes);
    mf_json_put_u64(w, "lower_bound_bytes", a->lower_bound_bytes);
    mf_json_open(w, "as_asked", '{');
    mf_json_put_bool(w, "fits", a->as_asked_fits);
    mf_json_put_u64(w, "peak_bytes", a->as_asked_peak_bytes);
    mf_json_close(w, '}');
    if (a->float32_peak_bytes) { /* what 16 bits save, as asked; less than nothing, where they do not */
        mf_json_open(w, "precision", '{');
        mf_json_put_string(w, "name", a->precision);
        mf_json_put_u64(w, "float32_peak_bytes", a->float32_peak_bytes);
        mf_json_put_i64(w, "saved_bytes", (int64_t)a->float32_peak_bytes - (int64_t)a->as_asked_peak_bytes);
        mf_json_put_double(w, "slowdown", a->precision_slowdown);
        mf_json_close(w, '}');
    }
    put_breakdown(w, a);
    mf_json_put_string(w, "peak_at", a->peak_at);
    put_owners(w, a);
    put_layers(w, a);
    mf_json_put_i64(w, "max_batch", a->max_batch);
    mf_json_put_i64(w, "max_batch_as_asked", a->max_batch_as_asked);
    mf_json_put_u64(w, "max_batch_loss_chunks", a->max_batch_chunks);
    mf_json_put_i64(w, "pieces", plan->pieces);
    mf_json_put_i64(w, "piece_batch", plan->phases[0].batch);
    mf_json_put_u64(w, "loss_chunks", plan->chunks);
    if (plan->unpredicted_bytes)
        mf_json_put_u64(w, "prediction_left_out_bytes", plan->unpredicted_bytes);
    mf_json_put_u64(w, "recomputed_ops", plan->recomputed_ops);
    mf_json_put_double(w, "slowdown", a->slowdown);
    mf_json_put_string(w, "numerics", mf_numerics_name(plan->numerics));
    if (!a->fits) {
        mf_json_put_string(w, "obstacle", a->obstacle);
        mf_json_put_u64(w, "least_bytes", a->least_bytes);
    }
    if (plan->phases[0].graph->left_out)
        mf_json_put_string(w, "not_trained", plan->phases[0].graph->left_out);
    put_suggestions(w, a);
    put_bounds(w, a);
    put_phases(w, plan);
    put_curve(w, a);
    put_framework(w, &a->framework);
    mf_json_put_double(w, "plan_seconds", a->seconds);
}

void mf_answer_print_json(FILE *file, const mf_answer *answer, const mf_answer_context *context)
{
    mf_json_writer w;
    mf_json_begin(&w, file);
    mf_json_open(&w, NULL, '{');
    put_answer(&w, answer, context);
    mf_json_close(&w, '}');
    mf_json_end(&w);
}

void mf_answers_print_json(FILE *file, uint32_t count, mf_answer *const *answers, const mf_answer_context *contexts)
{
    mf_json_writer w;
    mf_json_begin(&w, file);
    mf_json_open(&w, NULL, '{');
    put_answer(&w, answers[0], &contexts[0]);
    mf_json_open(&w, "cards", '[');
    for (uint32_t i = 0; i < count; i++) {
        mf_json_open(&w, NULL, '{');
        put_answer(&w, answers[i], &contexts[i]);
        mf_json_close(&w, '}');
    }
    mf_json_close(&w, ']');
    mf_json_close(&w, '}');
    mf_json_end(&w);
}
