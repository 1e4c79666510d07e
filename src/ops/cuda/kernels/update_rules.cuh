/* update_rules.cuh: in place of ops/reference/update_body.h: the rules for one element, without the walks over tensors. */
#include "ops/reference/real.h"
#include "ops/reference/update_rule.h"
