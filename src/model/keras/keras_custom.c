/*
 * keras_custom.c: which objects of a configuration are Keras's own, and which the model's author wrote.
 *
 * Keras writes {"module", "class_name", "registered_name", "config"} for layers, cells, losses, optimizers, schedules,
 * regularizers, constraints and metrics alike. Only the module tells an author's class Adam from Keras's: it is null
 * or the author's, and registered_name is "package>Adam" or, where the author did not register the class, "Adam".
 */
#include "model/keras/keras_inner.h"

#include <string.h>

static bool starts_with(const char *text, const char *prefix)
{
    return text && strncmp(text, prefix, strlen(prefix)) == 0;
}

bool mf_keras_is_custom(const char *module, const char *registered_name)
{
    static const char *const apart[] = {"keras_hub", "keras_nlp", "keras_cv"};
    bool own = starts_with(module, "keras") || starts_with(module, "tf_keras") || starts_with(module, "tensorflow.") ||
               starts_with(module, "builtins");
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
        own &= !starts_with(module, apart[i]);
    return !own && ((module && *module) || (registered_name && *registered_name));
}

bool mf_keras_name_custom(mf_arena *arena, mf_json *value)
{
    for (mf_json *child = value->first; child; child = child->next)
        if (!mf_keras_name_custom(arena, child))
            return false;
    const char *registered = mf_json_get_string(value, "registered_name", NULL);
    if (value->type != MF_JSON_OBJECT || !mf_keras_is_custom(mf_json_get_string(value, "module", NULL), registered))
        return true;
    for (mf_json *m = value->first; m; m = m->next)
        if (strcmp(m->key, "class_name") == 0 && m->type == MF_JSON_STRING && !strchr(m->string, '>')) {
            bool full = registered && strchr(registered, '>');
            m->string = full ? registered : mf_arena_printf(arena, "Custom>%s", m->string);
            return m->string != NULL;
        }
    return true;
}
