/* SPDX-License-Identifier: Apache-2.0 */
/* test_stack_usage.c - the engine's threads have small stacks: encoding and decoding, the deepest calls, use less than
 * the budget counts, and fit into the smallest stacks of programs' threads. */
#include "test.h"
#include "codec.h"
#include "thread.h"

#include <pthread.h>

#define ELEMENTS (128u << 10) /* two spans of the cascade */
#define PAINT 0xa5
#define PAINT_AWAY 8192 /* bytes below the painter's own frame that are not painted */

/* Not instrumented, and loops in place of memset(): a sanitizer's memset() checks whether the memory belongs to a
 * variable. */
#define UNSEEN __attribute__((noinline, no_sanitize("address", "undefined", "thread")))

/* The stack of the calling thread. */
static void stack_range(uint8_t **begin, size_t *bytes)
{
    pthread_attr_t attr;
    void *at = NULL;
    assert_int_equal(pthread_getattr_np(pthread_self(), &attr), 0);
    assert_int_equal(pthread_attr_getstack(&attr, &at, bytes), 0);
    pthread_attr_destroy(&attr);
    *begin = at;
}

static UNSEEN void paint(uint8_t *begin)
{
    volatile uint8_t *end = (uint8_t *)__builtin_frame_address(0) - PAINT_AWAY;
    for (volatile uint8_t *p = begin; p < end; p++)
        *p = PAINT;
}

/* Bytes from the top of the stack down to the lowest one that was written. */
static UNSEEN size_t depth(const uint8_t *begin, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && ((const volatile uint8_t *)begin)[i] == PAINT)
        i++;
    return bytes - i;
}

/* Like trained weights: most exponents are close together, a few are far away. */
static void fill(uint8_t *raw, size_t bytes, size_t element_bytes)
{
    uint64_t random = 1;
    for (size_t i = 0; i < bytes; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        raw[i] = (uint8_t)(random >> 56);
        if (i % element_bytes == element_bytes - 1) /* the byte with the sign and most of the exponent */
            raw[i] = (uint8_t)((raw[i] & 0x80) | (0x3c - __builtin_popcountll(random >> 50 & 0x7f)));
    }
}

struct shard {
    uint8_t *raw, *back, *e, *sm;
    struct efs_codec_scratch *scratch;
    size_t stack_bytes, used_bytes;
};

static void decodes_to_its_bytes(const struct efs_shard_view *view, const struct shard *s, size_t first, size_t count,
                                 bool stream)
{
    const size_t element_bytes = efs_format_bytes(view->format);
    assert_int_equal(efs_shard_decode(view, first, count, s->back, stream, s->scratch), 0);
    assert_memory_equal(s->back, s->raw + first * element_bytes, count * element_bytes);
}

/* Encodes a shard, decodes it whole and decodes a part of a block, which needs another block on the stack. */
static void round_trip(const struct shard *s, enum efs_format format, enum efs_codec_choice choice)
{
    const size_t element_bytes = efs_format_bytes(format);
    struct efs_shard_coded coded;
    fill(s->raw, ELEMENTS * element_bytes, element_bytes);
    assert_int_equal(efs_shard_encode(format, choice, s->raw, ELEMENTS, s->e, s->sm, &coded, s->scratch), 0);
    struct efs_shard_view view = {format, coded.codec, ELEMENTS, s->e, s->sm, coded.e_bytes, coded.sm_bytes};
    decodes_to_its_bytes(&view, s, 0, ELEMENTS, false);
    decodes_to_its_bytes(&view, s, 0, ELEMENTS, true);
    decodes_to_its_bytes(&view, s, 70001, 100, false);
    if (coded.codec == EFS_CODEC_CASCADE) { /* with the memory of the thread */
        const struct shard bare = {.raw = s->raw, .back = s->back};
        decodes_to_its_bytes(&view, &bare, 0, ELEMENTS, false);
    }
}

static void *all_formats(void *arg)
{
    struct shard *s = arg;
    uint8_t *begin;
    stack_range(&begin, &s->stack_bytes);
    paint(begin);
    for (int format = 0; format < EFS_FORMAT_COUNT; format++)
        for (int choice = EFS_CHOOSE_AUTO; choice <= EFS_CHOOSE_LZ4; choice++)
            round_trip(s, (enum efs_format)format, (enum efs_codec_choice)choice);
    s->used_bytes = depth(begin, s->stack_bytes);
    return NULL;
}

TEST(shards_are_coded_and_decoded)
{
    struct shard s = {.raw = malloc(4 * ELEMENTS),
                      .back = malloc(4 * ELEMENTS),
                      .e = malloc(efs_shard_e_bound(ELEMENTS)),
                      .sm = malloc(efs_shard_sm_bound(EFS_FORMAT_F32, ELEMENTS))};
    unsigned long thread;
    assert_int_equal(efs_codec_scratch_new(ELEMENTS, &s.scratch), 0);
    assert_int_equal(efs_thread_start(all_formats, &s, "stack", &thread), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    print_message("# %zu of %zu bytes\n", s.used_bytes, s.stack_bytes);
    assert_true(s.used_bytes > EFS_BLOCK);
    if (EFS_STACK_SANITIZER_BYTES == 0)
        assert_true(s.used_bytes <= EFS_STACK_TOUCHED_BYTES * 3 / 4);
    else /* half of the memory for a sanitizer and thread-local variables is never written */
        assert_true(s.stack_bytes - s.used_bytes >= EFS_STACK_BYTES / 2);
    efs_codec_scratch_free(s.scratch);
    free(s.raw);
    free(s.back);
    free(s.e);
    free(s.sm);
}

TEST_MAIN(NULL, NULL)
