/* SPDX-License-Identifier: Apache-2.0 */
/* llama_flags.h - options of llama.cpp's programs by which a model on a mount, or with our backend, gains less or
 * nothing. */
#ifndef EXPERTCTL_LLAMA_FLAGS_H
#define EXPERTCTL_LLAMA_FLAGS_H

#include <stddef.h>

/* Those among a program's words, which need not be one of llama.cpp: each is told once, text says what it does. */
void ctl_llama_flags(char *const *words, size_t count, void (*tell)(void *arg, const char *flag, const char *text),
                     void *arg);

#endif
