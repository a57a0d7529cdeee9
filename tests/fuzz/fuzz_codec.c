/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_codec.c - any bytes as weights of each format, coded by each choice: both of two runs must give the same chunks,
 * and decoding must give the same bytes, whole and in a range. Then any bytes as chunks, and good chunks with some
 * bytes changed: decoding returns an error or some elements, writes nothing after the output, and gives the same result
 * when repeated, whole or from the pieces that a small read reads.
 *
 * Input: format, choice, number of changes at the end of the input (4 bytes each: 2 of position, selector, value) plus
 * 128 for short spans, then the weights.
 */
#include "codec.h"
#include "fuzz.h"

#include <errno.h>
#include <string.h>

#define ELEMENTS 65536u
#define GUARD 64u /* bytes after the output */

static struct efs_codec_scratch *scratch;

struct coded {
    uint8_t *e, *sm;
    struct efs_shard_coded about;
};

static void *room(size_t bytes)
{
    void *p = malloc(bytes + GUARD);
    CHECK(p);
    return p;
}

static void encode(enum efs_format format, enum efs_codec_choice choice, bool is_short, const uint8_t *raw,
                   size_t elements, struct coded *coded)
{
    coded->e = room(efs_shard_e_bound(elements));
    coded->sm = room(efs_shard_sm_bound(format, elements));
    CHECK((is_short ? efs_shard_encode_short : efs_shard_encode)(format, choice, raw, elements, coded->e, coded->sm,
                                                                 &coded->about, scratch) == 0);
    CHECK(coded->about.e_bytes <= efs_shard_e_bound(elements));
    CHECK(coded->about.sm_bytes <= efs_shard_sm_bound(format, elements));
}

static void coded_free(struct coded *coded)
{
    free(coded->e);
    free(coded->sm);
}

/* Decodes elements [first, first + count) and checks that nothing after them was written. 0 or -EUCLEAN. */
static errint_t decode(const struct efs_shard_view *view, size_t first, size_t count, uint8_t *out)
{
    size_t bytes = count * efs_format_bytes(view->format);
    memset(out + bytes, 0xA5, GUARD);
    errint_t rc = efs_shard_decode(view, first, count, out, false, scratch);
    CHECK(rc == 0 || rc == -EUCLEAN);
    for (unsigned i = 0; i < GUARD; i++)
        CHECK(out[bytes + i] == 0xA5);
    return rc;
}

/* Decodes a range from copies of the pieces that it needs. whole: all elements as decoded from the chunk; NULL: it does
 * not decode. */
static void decode_pieces(enum efs_format format, size_t elements, const uint8_t *e, size_t e_bytes, const uint8_t *sm,
                          size_t sm_bytes, size_t first, size_t count, const uint8_t *whole)
{
    size_t head_bytes = efs_cascade_head_bytes(elements), element = efs_format_bytes(format);
    struct efs_cascade_range range;
    head_bytes = head_bytes < e_bytes ? head_bytes : e_bytes;
    if (efs_cascade_locate(format, e, head_bytes, e_bytes, elements, first, count, &range) != 0 ||
        sm_bytes != efs_sm_bytes(format, elements))
        return;
    uint8_t *head = malloc(head_bytes), *code = room(range.code_end - range.code_begin);
    uint8_t *sm_piece = malloc(range.sm_end - range.sm_begin + 1), *out = room(count * element);
    CHECK(head && sm_piece);
    memcpy(head, e, head_bytes);
    memcpy(code, e + range.code_begin, range.code_end - range.code_begin);
    if (range.sm_end > range.sm_begin)
        memcpy(sm_piece, sm + range.sm_begin, range.sm_end - range.sm_begin);
    int rc = efs_cascade_merge_range(format, head, head_bytes, e_bytes, code, sm_piece, first, count, out,
                                     efs_codec_thread_memory());
    CHECK(rc == 0 || (rc == -EUCLEAN && !whole));
    CHECK(!whole || memcmp(out, whole + first * element, count * element) == 0);
    free(head);
    free(code);
    free(sm_piece);
    free(out);
}

/* The chunks are copied to heap blocks of their exact size, so that a sanitizer detects reads past their end. */
static void decode_any(enum efs_format format, uint32_t codec, size_t elements, const uint8_t *e, size_t e_bytes,
                       const uint8_t *sm, size_t sm_bytes)
{
    uint8_t *e_copy = malloc(e_bytes ? e_bytes : 1), *sm_copy = malloc(sm_bytes ? sm_bytes : 1);
    uint8_t *out = room(elements * efs_format_bytes(format)), *part = room(elements * efs_format_bytes(format));
    CHECK(e_copy && sm_copy);
    memcpy(e_copy, e, e_bytes);
    memcpy(sm_copy, sm, sm_bytes);
    struct efs_shard_view view = {.format = format,
                                  .codec = codec,
                                  .elements = elements,
                                  .e = e_copy,
                                  .sm = sm_copy,
                                  .e_bytes = e_bytes,
                                  .sm_bytes = sm_bytes};
    errint_t rc = decode(&view, 0, elements, out);
    size_t first = elements / 3, count = elements - first - elements / 4;
    errint_t part_rc = decode(&view, first, count, part);
    if (rc == 0 && part_rc == 0) /* a range may miss the damage, but not decode to other bytes */
        CHECK(memcmp(part, out + first * efs_format_bytes(format), count * efs_format_bytes(format)) == 0);
    if (codec == EFS_CODEC_CASCADE && count > 0)
        decode_pieces(format, elements, e_copy, e_bytes, sm_copy, sm_bytes, first, count, rc == 0 ? out : NULL);
    CHECK(decode(&view, 0, elements, part) == rc);
    if (rc == 0)
        CHECK(memcmp(part, out, elements * efs_format_bytes(format)) == 0);
    free(e_copy);
    free(sm_copy);
    free(out);
    free(part);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 8 || size > ELEMENTS)
        return 0;
    if (!scratch)
        CHECK(efs_codec_scratch_new(ELEMENTS, &scratch) == 0);
    enum efs_format format = (enum efs_format)(data[0] % EFS_FORMAT_COUNT);
    enum efs_codec_choice choice = (enum efs_codec_choice)(data[1] % 8);
    size_t changes = data[2] % 8 * 4u;
    bool is_short = data[2] >= 128;
    data += 3, size -= 3;
    if (changes > size)
        changes = 0;
    const uint8_t *change = data + size - changes;
    size -= changes;
    const size_t element = efs_format_bytes(format), elements = size / element;
    if (elements == 0)
        return 0;
    if (efs_codec_can_choose(choice) && !(choice == EFS_CHOOSE_RAW && format != EFS_FORMAT_BYTES)) {
        struct coded a, b;
        uint8_t *out = room(elements * element);
        encode(format, choice, is_short, data, elements, &a);
        encode(format, choice, is_short, data, elements, &b);
        CHECK(a.about.codec == b.about.codec && a.about.e_bytes == b.about.e_bytes &&
              a.about.sm_bytes == b.about.sm_bytes && memcmp(a.e, b.e, a.about.e_bytes) == 0 &&
              memcmp(a.sm, b.sm, a.about.sm_bytes) == 0);
        struct efs_shard_view view = {.format = format,
                                      .codec = a.about.codec,
                                      .elements = elements,
                                      .e = a.e,
                                      .sm = a.sm,
                                      .e_bytes = a.about.e_bytes,
                                      .sm_bytes = a.about.sm_bytes};
        CHECK(decode(&view, 0, elements, out) == 0 && memcmp(out, data, elements * element) == 0);
        for (size_t i = 0; i < changes; i += 4) {
            size_t at = (size_t)change[i] | (size_t)change[i + 1] << 8;
            if (a.about.e_bytes && change[i + 2] % 4)
                a.e[at % a.about.e_bytes] = change[i + 3];
            else if (a.about.sm_bytes)
                a.sm[at % a.about.sm_bytes] = change[i + 3];
        }
        size_t cut = changes ? change[0] % 2 * change[1] : 0; /* may also truncate the E-chunk */
        decode_any(format, a.about.codec, elements, a.e, cut < a.about.e_bytes ? a.about.e_bytes - cut : 0, a.sm,
                   a.about.sm_bytes);
        coded_free(&a);
        coded_free(&b);
        free(out);
    }
    for (uint32_t codec = 0; codec < EFS_CODECS; codec++)
        decode_any(format, codec, elements, data, size / 2, data + size / 2, size - size / 2);
    return 0;
}
