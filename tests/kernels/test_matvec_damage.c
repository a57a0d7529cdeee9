/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_matvec_damage.c - malformed chunks give an error for every split of the rows, and no byte outside them is read:
 * each ends at a guard page. A symbol replaced by another one is not detected here; the store's checksums detect it.
 */
#include "test.h"
#include "matvec_cases.h"

enum { ROWS = 60, TOKENS_MAX = 3 };

static const uint32_t columns[] = {448, 449}; /* directly from the code, and via a tile */

struct victim {
    struct matrix *m;
    void *input[2]; /* 1 token, TOKENS_MAX */
};

static struct victim victim_new(uint32_t cols, enum matrix_form form, uint64_t *rng)
{
    uint16_t *numbers = malloc((size_t)ROWS * cols * 2);
    float *x = malloc((size_t)TOKENS_MAX * cols * sizeof(float));
    struct victim v;

    assert_true(numbers && x);
    for (size_t i = 0; i < (size_t)ROWS * cols; i++)
        numbers[i] = bf16_of(NUMBERS_WEIGHTS, rng);
    for (size_t i = 0; i < (size_t)TOKENS_MAX * cols; i++)
        x[i] = f32_of(NUMBERS_WEIGHTS, rng);
    v.m = matrix_new(form, numbers, ROWS, cols, 2 * EFS_BLOCK);
    v.input[0] = input_new(EFS_INPUT_F32, x, cols, cols, 1);
    v.input[1] = input_new(EFS_INPUT_F32, x, cols, cols, TOKENS_MAX);
    free(numbers);
    free(x);
    return v;
}

static void victim_free(struct victim *v)
{
    matrix_free(v->m);
    free(v->input[0]);
    free(v->input[1]);
}

/* The result, 0 or -EUCLEAN, must be equal on every path, for one and several tokens, for 1 part of the rows and for
 * 4. */
static int verdict(struct victim *v)
{
    float y[ROWS * TOKENS_MAX];
    int answer = 1;

    for (size_t p = 0; p < PATH_COUNT; p++) {
        if (!efs_cpu_force(path_names[p]))
            continue;
        for (unsigned way = 0; way < 4; way++) {
            int r = multiply_split(v->m, v->input[way % 2], way % 2 ? TOKENS_MAX : 1, way / 2 ? 4 : 1, y);
            assert_true(answer == 1 || r == answer);
            answer = r;
        }
    }
    assert_true(answer == 0 || answer == -EUCLEAN);
    return answer;
}

TEST(random_flips)
{
    uint64_t rng = 41;
    size_t refused = 0, passed = 0;

    for (size_t c = 0; c < 2; c++) {
        struct victim v = victim_new(columns[c], FORM_CASCADE, &rng);
        for (int round = 0; round < 300; round++) {
            struct guarded *chunk = &v.m->e[random_below(&rng, (uint32_t)v.m->shard_count)];
            uint32_t at = random_below(&rng, round % 3 ? (uint32_t)chunk->bytes : 60);
            uint8_t mask = (uint8_t)(1u << random_below(&rng, 8));
            chunk->data[at] ^= mask;
            if (verdict(&v) == 0)
                passed++;
            else
                refused++;
            chunk->data[at] ^= mask;
        }
        assert_int_equal(verdict(&v), 0);
        victim_free(&v);
    }
    assert_true(refused > 0 && passed > 0);
}

/* Planes with only escapes, or none. */
TEST(all_escapes)
{
    uint64_t rng = 42;

    for (size_t c = 0; c < 2; c++) {
        struct victim v = victim_new(columns[c], FORM_CASCADE, &rng);
        struct guarded *chunk = &v.m->e[0];
        size_t planes = chunk->bytes - EFS_CASCADE_SLACK - 2 * 2048; /* of level 1, two blocks: the last part */
        assert_true(chunk->data[16 + 20] > 0);
        memset(chunk->data + planes, 0xff, 2048);
        assert_int_equal(verdict(&v), -EUCLEAN);
        memset(chunk->data + planes, 0, 2048);
        assert_int_equal(verdict(&v), -EUCLEAN);
        victim_free(&v);
    }
}

/* Sizes that contradict each other or the matrix are refused. */
TEST(forged_sizes)
{
    uint64_t rng = 43;

    for (size_t c = 0; c < 2; c++) {
        for (int form = FORM_CASCADE; form < FORMS; form++) {
            struct victim v = victim_new(columns[c], (enum matrix_form)form, &rng);
            struct efs_matrix_shard *shard = &v.m->shards[1], kept = *shard;
            shard->sm_bytes--;
            assert_int_equal(verdict(&v), -EUCLEAN);
            shard->sm_bytes += 2;
            assert_int_equal(verdict(&v), -EUCLEAN);
            *shard = kept;
            shard->sm = NULL;
            assert_int_equal(verdict(&v), -EUCLEAN);
            *shard = kept;
            if (kept.form == EFS_E_CALLBACK) {
                victim_free(&v);
                continue;
            }
            for (size_t bytes = 0; bytes < kept.e_bytes; bytes += bytes / 2 + 1) {
                shard->e_bytes = bytes;
                assert_int_equal(verdict(&v), -EUCLEAN);
            }
            *shard = kept;
            shard->e = NULL;
            assert_int_equal(verdict(&v), -EUCLEAN);
            *shard = v.m->shards[0]; /* a valid shard with another number of elements */
            if (matrix_shard_elements(v.m, 1) != matrix_shard_elements(v.m, 0))
                assert_int_equal(verdict(&v), -EUCLEAN);
            victim_free(&v);
        }
    }
}

static int refuses(void *user, size_t shard, const uint8_t **e)
{
    (void)user;
    (void)e;
    return shard == 1 ? -EIO : 0;
}

TEST(errors_of_the_caller)
{
    uint64_t rng = 44;
    struct victim v = victim_new(448, FORM_ASK, &rng);
    struct efs_matrix w = v.m->w;
    float y[ROWS], x = 1;
    size_t bytes = efs_matvec_scratch_bytes(448, 1);
    uint8_t *scratch = aligned_alloc(EFS_MATVEC_ALIGN, bytes), *memory = aligned_alloc(64, 4096);

    assert_true(scratch && memory);
    memset(memory, 0, 4096);
    assert_int_equal(efs_matvec(&w, v.input[0], 0, ROWS, y, ROWS, scratch), 0);
    assert_int_equal(efs_matvec(&w, v.input[0], 5, 5, y, ROWS, scratch), 0);
    assert_int_equal(efs_matvec(&w, v.input[0], 6, 5, y, ROWS, scratch), -EINVAL);
    assert_int_equal(efs_matvec(&w, v.input[0], 0, ROWS + 1, y, ROWS, scratch), -EINVAL);
    assert_int_equal(efs_matvec(&w, v.input[0], 0, ROWS, NULL, ROWS, scratch), -EINVAL);
    assert_int_equal(efs_matvec(&w, v.input[0], 0, ROWS, y, ROWS, NULL), -EINVAL);
    assert_int_equal(efs_matvec(&w, NULL, 0, ROWS, y, ROWS, scratch), -EINVAL);
    assert_int_equal(efs_matvec(&w, memory, 0, ROWS, y, ROWS, scratch), -EINVAL);
    w.cols = 449; /* different from the input's */
    assert_int_equal(efs_matvec(&w, v.input[0], 0, 1, y, ROWS, scratch), -EINVAL);
    w.cols = 448;
    assert_int_equal(efs_matvec_swiglu(&w, &v.m->w, v.input[0], 0, ROWS, y, ROWS, scratch), 0);
    w.rows--;
    assert_int_equal(efs_matvec_swiglu(&w, &v.m->w, v.input[0], 0, 1, y, ROWS, scratch), -EINVAL);
    w.rows++;
    w.shard_elements = EFS_BLOCK + 1;
    assert_int_equal(efs_matvec(&w, v.input[0], 0, ROWS, y, ROWS, scratch), -EINVAL);
    w = v.m->w;
    w.exponents = NULL;
    assert_int_equal(efs_matvec(&w, v.input[0], 0, ROWS, y, ROWS, scratch), -EINVAL);
    w.exponents = refuses; /* returns success without a buffer for shard 0 */
    assert_int_equal(efs_matvec(&w, v.input[0], 0, ROWS, y, ROWS, scratch), -EINVAL);
    assert_int_equal(efs_matvec(&w, v.input[0], ROWS - 1, ROWS, y, ROWS, scratch), -EIO);

    assert_int_equal(efs_input_bytes(0, 1), 0);
    assert_int_equal(efs_input_bytes(1, 0), 0);
    assert_int_equal(efs_input_bytes(EFS_COLS_MAX + 1, 1), 0);
    assert_int_equal(efs_input_bytes(1, EFS_TOKENS_MAX + 1), 0);
    assert_int_equal(efs_matvec_scratch_bytes(0, 1), 0);
    assert_true(efs_matvec_scratch_bytes(EFS_COLS_MAX, EFS_TOKENS_MAX) > 0);
    assert_int_equal(efs_input_prepare(EFS_INPUT_F32, &x, 1, 1, 1, memory), 0);
    assert_int_equal(efs_input_prepare(EFS_INPUT_F32, &x, 1, 1, 1, memory + 4), -EINVAL);
    assert_int_equal(efs_input_prepare(EFS_INPUT_F32, NULL, 1, 1, 1, memory), -EINVAL);
    assert_int_equal(efs_input_prepare((enum efs_input_type)7, &x, 1, 1, 1, memory), -EINVAL);
    free(scratch);
    free(memory);
    victim_free(&v);
}

TEST_MAIN(NULL, NULL)
