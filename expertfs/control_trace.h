/* control_trace.h - .expertfs/trace: the latest requests of the mount as a routing trace (.route). */
#ifndef EFSD_CONTROL_TRACE_H
#define EFSD_CONTROL_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "libexpertfs.h"

/* More tokens than that of one pass are told as so many. */
#define EFSD_TRACE_TOKENS 64u

/*
 * Turn requests, as efs_describe("requests") has them, into a trace of a model of that shape, on out. Requests of one
 * layer after the other are a pass of the model; a pass is told if all its layers asked. A pass for several tokens is
 * told as that many, each with a sequence of its own, between which the experts are dealt so that each is asked for as
 * often as it was. Nothing is written when there is no pass to be told. 0, -ENOMEM; -EPROTO: text of another form.
 */
errint_t efsd_trace_write(const char *text, size_t bytes, uint32_t layers, uint32_t experts, const char *name,
                          FILE *out);

#endif
