/* fit_orders.h: the orders a graph's operations are planned in, and the best of them at a budget. */
#ifndef MF_PLAN_FIT_ORDERS_H
#define MF_PLAN_FIT_ORDERS_H

#include "plan/fit/fit.h"

void mf_fit_order_free(const memfit_host *host, mf_fit_order *order);
/* Fills entry->order and entry->own from entry->graph. */
memfit_status mf_fit_orders_make(mf_fitter *fitter, mf_fit_entry *entry, memfit_error *err);
/* The least bytes recomputation reaches, in any order or in the graph's own only (cheaper). */
memfit_status mf_fit_orders_lowest(mf_fitter *fitter, mf_fit_entry *entry, bool own_only, uint64_t *load,
                                   memfit_error *err);
/* The fastest of the orders (entry->order, then entry->own) within their budgets; the smallest where none is. It is in
 * its tradeoff's sequence. */
memfit_status mf_fit_orders_within(mf_fitter *fitter, mf_fit_entry *entry, const uint64_t budgets[2],
                                   mf_fit_order **best, bool *fits, memfit_error *err);
/* Host memory the orders take, about. */
uint64_t mf_fit_orders_bytes(const mf_fit_entry *entry);
/* Is what was searched for in this entry used by another one? */
bool mf_fit_orders_needed(const mf_fitter *fitter, const mf_fit_entry *entry);
/* mf_bounds_recompute over the orders: no plan in any of them spends less. */
memfit_status mf_fit_orders_bound(mf_fitter *fitter, const mf_fit_entry *entry, uint64_t room, uint64_t effort,
                                  double *extra_us, memfit_error *err);

#endif
