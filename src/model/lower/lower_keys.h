/* lower_keys.h: which configuration keys are obeyed, which may have any value, and which only their default. */
#ifndef MF_MODEL_LOWER_KEYS_H
#define MF_MODEL_LOWER_KEYS_H

#include "base/json.h"

typedef enum { MF_KEYS_LAYER, MF_KEYS_LOSS, MF_KEYS_OPTIMIZER, MF_KEYS_METRIC } mf_key_part;

typedef enum {
    MF_KEY_UNKNOWN,  /* not in the table: refused unless it says nothing (null, false, empty) */
    MF_KEY_OBEYED,   /* read by the rule of the class */
    MF_KEY_HARMLESS, /* any value: changes neither bytes nor results on one device */
    MF_KEY_FIXED,    /* only the values of the table; anything else is refused */
} mf_key_rule;

/* Does the table know this class at all? Names of losses, optimizers and metrics in any writing. */
bool mf_keys_known(mf_key_part part, const char *class_name);
mf_key_rule mf_key_rule_of(mf_key_part part, const char *class_name, const char *key);

/* The first key of a configuration whose value would be dropped in silence, or NULL: also without a configuration, and
 * for classes the table does not know, which are refused as such or are models inside a wrapper. */
const mf_json *mf_dropped_key(mf_key_part part, const char *class_name, const mf_json *config);
/* The first key whose value is of the wrong type or size, with what it must be; NULL when all are right. */
const mf_json *mf_wrong_value(const char *class_name, const mf_json *config, char *what, size_t bytes);
/* "curve = \"PR\"": at most `bytes` of it, for messages. Returns text. */
const char *mf_key_text(const mf_json *entry, char *text, size_t bytes);

#endif
