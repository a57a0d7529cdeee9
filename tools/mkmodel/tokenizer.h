/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.h - a small but real vocabulary: byte-level byte-pair encoding, learnt from a text in this program.
 */
#ifndef MKMODEL_TOKENIZER_H
#define MKMODEL_TOKENIZER_H

#include <jansson.h>
#include <stdint.h>

/* Tokens as GPT-2 writes them: each byte stands for a printable character, a space for "Ġ". */
struct mk_tokenizer {
    uint32_t count;  /* tokens: bytes, merges, special, reserved, in this order */
    char **tokens;   /* UTF-8 */
    uint32_t merges; /* merge i makes token 256 + i */
    uint32_t (*pairs)[2];
    uint32_t special; /* number of the first special token; there are MK_SPECIALS */
};

enum { MK_END_OF_TEXT, MK_MESSAGE_START, MK_MESSAGE_END, MK_SPECIALS };

extern const char mk_chat_template[];

/* Make a vocabulary of vocab tokens, vocab >= 320. 0 or -ENOMEM. Free it with mk_tokenizer_free() in both cases. */
int mk_tokenizer_init(struct mk_tokenizer *tokenizer, uint32_t vocab);
void mk_tokenizer_free(struct mk_tokenizer *tokenizer);

/* tokenizer.json and tokenizer_config.json; NULL: no memory. */
json_t *mk_tokenizer_json(const struct mk_tokenizer *tokenizer);
json_t *mk_tokenizer_config(const struct mk_tokenizer *tokenizer, uint32_t context);

#endif
