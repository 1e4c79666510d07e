/*
 * optimizer.h: from a forward graph with losses to a training step: backward pass, regularizers, clipping, loss
 * scaling, updates, averages of weights.
 */
#ifndef MF_GRAPH_OPTIMIZER_H
#define MF_GRAPH_OPTIMIZER_H

#include "graph/build.h"

typedef struct mf_optimizer_settings {
    mf_update_attr update;
    double clip_norm, global_clip_norm, clip_value; /* 0: none; at most one */
    bool ema;
    double ema_momentum;
    uint32_t ema_overwrite;      /* steps after which weights become averages; 0: at the end only */
    bool loss_scale;             /* float16: check for finite gradients, skip the step otherwise */
    uint32_t accumulation_steps; /* the model's own setting; 0 or 1: none */
} mf_optimizer_settings;

/* The usual settings of an optimizer, e.g. for "adam" given by name. */
void mf_optimizer_defaults(mf_optimizer optimizer, mf_optimizer_settings *settings);
const char *mf_optimizer_name(mf_optimizer optimizer);
/* "Adam", "adam", "adamw": case does not matter. */
bool mf_optimizer_parse(const char *name, mf_optimizer *optimizer);
/* Slots the optimizer keeps for one parameter, and their names. */
uint32_t mf_optimizer_slots(const mf_optimizer_settings *settings, const char *names[4]);
/* Its usual learning rate. */
double mf_optimizer_learning_rate(mf_optimizer optimizer);

/* Numbers the optimizer's variables behind those that are there: for each trainable parameter its slots, then all
 * gradient accumulators, then all averages, then the flag of loss scaling. The same in every mode. */
void mf_optimizer_variables(mf_build *b, const mf_optimizer_settings *settings);
/* Appends backward pass and updates; graph->accumulate decides about pieces. */
void mf_optimizer_step(mf_build *b, const mf_optimizer_settings *settings);
/* Adds the regularizers' parts to the loss (evaluation: no gradients). */
void mf_regularizer_losses(mf_build *b);

#endif
