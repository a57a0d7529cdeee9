/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MERGES 512u
#define MAX_WORDS 1024u
#define MAX_WORD 24u

static const char *const specials[MK_SPECIALS] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

const char mk_chat_template[] =
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* What the merges are learnt from. */
static const char text[] =
    "A model with many experts keeps most of its weights asleep. For each token a router looks at the hidden state and "
    "chooses a few experts of the layer; the others are not needed for this token, though they may be needed for the "
    "next one. So the weights that are read again and again should stay in memory, and those that are seldom read can "
    "wait on the disk until someone asks for them. The store holds every expert in a smaller form, without losing a "
    "single bit, because the exponents of trained weights are far from random: a few values are common and the rest "
    "are rare. A code that gives short words to common values and long words to rare ones makes them small. Signs and "
    "mantissas look like noise, and noise cannot be made smaller, so they are kept as they are.\n"
    "When the sun rises over the harbour, the boats go out one after another. The old man at the end of the pier "
    "counts them, as he has done since he was a boy, and writes the number into a little book. There were more boats "
    "then, he says, and more fish, and the winters were longer. His daughter brings him bread and coffee, and they "
    "talk about the weather, the price of rope, and the children who have moved to the city. In the evening the boats "
    "come back, and he counts them again. If the numbers are the same, he closes the book and walks home. If they are "
    "not, he waits, with a lamp in his hand, until the last one is in.\n"
    "To measure how fast something works, do it more than once, change one thing at a time, and write down what you "
    "did before you know what came out of it. A number without the command that made it is only a story. Compare with "
    "what the machine can do at best: the disk has a limit, the memory has a limit, and so do the cores. When the "
    "result is better than the limit, the measurement is wrong. When it is far below, there is work to do, and the "
    "first question is always where the time goes. Read the code, draw the path of a byte from one end to the other, "
    "and look for the place where it waits.\n"
    "Bread needs flour, water, salt and time. Mix them in the evening, let the dough rest under a cloth during the "
    "night, and fold it in the morning. Heat the oven until the stone inside is very hot, then put the bread on it and "
    "close the door. After half an hour it sounds hollow when you knock on its back, and that is how you know that it "
    "is ready. Let it cool before you cut it, even if everyone in the house is already standing in the kitchen with "
    "butter and a knife.\n";

/* The character that stands for a byte: itself if printable, else one from U+0100 on, as in GPT-2. */
static uint32_t byte_character(unsigned byte)
{
    uint32_t next = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        if (b == byte)
            return printable ? b : next;
        next += !printable;
    }
    return 0;
}

/* Token b of the first 256 is a byte: the printable ones come first, as in GPT-2. */
static unsigned token_byte(unsigned token)
{
    for (int printable = 1; printable >= 0; printable--)
        for (unsigned b = 0; b < 256; b++)
            if ((byte_character(b) < 256) == printable && token-- == 0)
                return b;
    return 0;
}

static void put_character(char *out, uint32_t character)
{
    if (character < 0x80) {
        out[0] = (char)character;
        out[1] = 0;
        return;
    }
    out[0] = (char)(0xc0 | character >> 6);
    out[1] = (char)(0x80 | (character & 0x3f));
    out[2] = 0;
}

/* The words of the text, each with the space before it, as tokens; the same word once, with its count. */
struct word {
    uint16_t tokens[MAX_WORD];
    uint32_t length, count;
};

struct words {
    struct word list[MAX_WORDS];
    uint32_t count;
};

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static void add_word(struct words *words, const char *start, uint32_t length, const uint16_t token_of[256])
{
    struct word word = {.length = length, .count = 1};
    for (uint32_t i = 0; i < length; i++)
        word.tokens[i] = token_of[(unsigned char)start[i]];
    for (uint32_t w = 0; w < words->count; w++) {
        if (words->list[w].length == length && !memcmp(words->list[w].tokens, word.tokens, sizeof(word.tokens))) {
            words->list[w].count++;
            return;
        }
    }
    if (words->count < MAX_WORDS)
        words->list[words->count++] = word;
}

static void split_words(struct words *words)
{
    uint16_t token_of[256];
    for (unsigned token = 0; token < 256; token++)
        token_of[token_byte(token)] = (uint16_t)token;
    for (const char *c = text; *c;) {
        const char *end = c + (*c == ' ');
        while (is_letter(*end))
            end++;
        if (end > c && end - c <= (long)MAX_WORD && is_letter(end[-1]))
            add_word(words, c, (uint32_t)(end - c), token_of);
        c = end > c ? end : c + 1;
    }
}

/* The pair of neighbours that is most frequent, the smallest one of several; false: none occurs twice. counts is a
 * square table of zeros, and is so again afterwards. */
static bool best_pair(const struct words *words, uint32_t *counts, uint32_t pair[2])
{
    uint32_t best = 1, side = 256 + MAX_MERGES, best_place = 0;
    for (int pass = 0; pass < 3; pass++) { /* count, choose, clear */
        for (uint32_t w = 0; w < words->count; w++) {
            const struct word *word = &words->list[w];
            for (uint32_t i = 0; i + 1 < word->length; i++) {
                uint32_t place = word->tokens[i] * side + word->tokens[i + 1];
                if (pass == 0)
                    counts[place] += word->count;
                if (pass == 1 && (counts[place] > best || (best > 1 && counts[place] == best && place < best_place))) {
                    best = counts[place];
                    best_place = place;
                }
                if (pass == 2)
                    counts[place] = 0;
            }
        }
    }
    pair[0] = best_place / side;
    pair[1] = best_place % side;
    return best > 1;
}

static void merge_pair(struct words *words, const uint32_t pair[2], uint16_t merged)
{
    for (uint32_t w = 0; w < words->count; w++) {
        struct word *word = &words->list[w];
        uint32_t to = 0;
        for (uint32_t from = 0; from < word->length; from++) {
            bool both = from + 1 < word->length && word->tokens[from] == pair[0] && word->tokens[from + 1] == pair[1];
            word->tokens[to++] = both ? merged : word->tokens[from];
            from += both;
        }
        word->length = to;
    }
}

/* Learn up to wanted merges. */
static int tokenizer_learn(struct mk_tokenizer *tokenizer, uint32_t wanted)
{
    struct words *words = calloc(1, sizeof(*words));
    uint32_t *counts = calloc((256 + MAX_MERGES) * (256 + MAX_MERGES), sizeof(*counts));
    tokenizer->pairs = calloc(MAX_MERGES, sizeof(*tokenizer->pairs));
    int rc = words && counts && tokenizer->pairs ? 0 : -ENOMEM;
    if (!rc) {
        split_words(words);
        while (tokenizer->merges < wanted && best_pair(words, counts, tokenizer->pairs[tokenizer->merges])) {
            merge_pair(words, tokenizer->pairs[tokenizer->merges], (uint16_t)(256 + tokenizer->merges));
            tokenizer->merges++;
        }
    }
    free(words);
    free(counts);
    return rc;
}

static int name_token(struct mk_tokenizer *tokenizer, uint32_t token)
{
    char buffer[64];
    uint32_t merges_end = 256 + tokenizer->merges;
    if (token < 256) {
        put_character(buffer, byte_character(token_byte(token)));
    } else if (token < merges_end) {
        const uint32_t *pair = tokenizer->pairs[token - 256];
        if (asprintf(&tokenizer->tokens[token], "%s%s", tokenizer->tokens[pair[0]], tokenizer->tokens[pair[1]]) < 0) {
            tokenizer->tokens[token] = NULL;
            return -ENOMEM;
        }
        return 0;
    } else if (token < merges_end + MK_SPECIALS) {
        snprintf(buffer, sizeof(buffer), "%s", specials[token - merges_end]);
    } else {
        snprintf(buffer, sizeof(buffer), "<|reserved_%u|>", token - merges_end - MK_SPECIALS);
    }
    tokenizer->tokens[token] = strdup(buffer);
    return tokenizer->tokens[token] ? 0 : -ENOMEM;
}

int mk_tokenizer_init(struct mk_tokenizer *tokenizer, uint32_t vocab)
{
    memset(tokenizer, 0, sizeof(*tokenizer));
    tokenizer->tokens = calloc(vocab, sizeof(*tokenizer->tokens));
    if (!tokenizer->tokens)
        return -ENOMEM;
    tokenizer->count = vocab;
    uint32_t wanted = vocab - 256 - MK_SPECIALS;
    int rc = tokenizer_learn(tokenizer, wanted < MAX_MERGES ? wanted : MAX_MERGES);
    tokenizer->special = 256 + tokenizer->merges;
    for (uint32_t token = 0; token < vocab && !rc; token++)
        rc = name_token(tokenizer, token);
    return rc;
}

void mk_tokenizer_free(struct mk_tokenizer *tokenizer)
{
    for (uint32_t token = 0; token < tokenizer->count; token++)
        free(tokenizer->tokens[token]);
    free(tokenizer->tokens);
    free(tokenizer->pairs);
    memset(tokenizer, 0, sizeof(*tokenizer));
}

static json_t *added_token(const struct mk_tokenizer *tokenizer, uint32_t token, bool with_id)
{
    json_t *added = json_pack("{s:s, s:b, s:b, s:b, s:b, s:b}", "content", tokenizer->tokens[token], "single_word", 0,
                              "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    if (added && with_id)
        json_object_set_new(added, "id", json_integer(token));
    return added;
}

json_t *mk_tokenizer_json(const struct mk_tokenizer *tokenizer)
{
    json_t *vocab = json_object(), *merges = json_array(), *added = json_array();
    for (uint32_t token = 0; token < tokenizer->count; token++)
        json_object_set_new(vocab, tokenizer->tokens[token], json_integer(token));
    for (uint32_t i = 0; i < tokenizer->merges; i++)
        json_array_append_new(merges, json_pack("[ss]", tokenizer->tokens[tokenizer->pairs[i][0]],
                                                tokenizer->tokens[tokenizer->pairs[i][1]]));
    for (uint32_t i = 0; i < MK_SPECIALS; i++)
        json_array_append_new(added, added_token(tokenizer, tokenizer->special + i, true));
    return json_pack("{s:s, s:n, s:n, s:o, s:n, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:b, s:b, s:b},"
                     " s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}}",
                     "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer",
                     "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "post_processor",
                     "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 1, "decoder", "type",
                     "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE",
                     "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                     "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", merges);
}

json_t *mk_tokenizer_config(const struct mk_tokenizer *tokenizer, uint32_t context)
{
    json_t *added = json_object();
    for (uint32_t i = 0; i < MK_SPECIALS; i++) {
        char number[16];
        snprintf(number, sizeof(number), "%u", tokenizer->special + i);
        json_object_set_new(added, number, added_token(tokenizer, tokenizer->special + i, false));
    }
    const char *end = specials[MK_END_OF_TEXT];
    return json_pack("{s:b, s:b, s:o, s:s, s:s, s:b, s:s, s:i, s:s, s:s}", "add_bos_token", 0, "add_prefix_space", 0,
                     "added_tokens_decoder", added, "bos_token", end, "chat_template", mk_chat_template,
                     "clean_up_tokenization_spaces", 0, "eos_token", end, "model_max_length", (int)context, "pad_token",
                     end, "tokenizer_class", "PreTrainedTokenizerFast");
}
