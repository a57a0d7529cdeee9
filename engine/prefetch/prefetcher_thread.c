/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetcher_thread.c - see prefetcher.h: the thread that owns the predictor. For each observed layer it trains the predictor,
 * scores earlier predictions and submits new ones. If it is slower than the layers, the ring of observations fills up
 * and layers are dropped.
 */
#include "prefetcher_internal.h"

#include "regular.h"
#include "state_file.h"
#include "sys.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAMED (2 * EFS_PREDICT_MAX_CHOSEN)
#define LEAST_PROBABILITY 0.01F
#define SAVE_NS 300000000000
#define SAVE_PASSES 16u /* fewest learned passes that are saved */

/* The predictions for a position. */
struct said {
    bool used;
    uint64_t sequence;
    int64_t due;
    uint8_t distance;
    uint32_t count;
    uint16_t ids[NAMED];
};
#define SAID 128u /* enough for 8 concurrent sequences: a layer adds up to 4, for up to 4 layers ahead */
_Static_assert(SAID * sizeof(struct said) <= EFS_GUESS_THREAD_BYTES / 2, "what the budget counts");

struct guesser {
    struct efs_guessing *g;
    struct efs_predictor *predictor;
    unsigned chosen, distances;
    uint32_t window, window_most; /* layers in this pass; most experts requested by one of them */
    uint64_t learned, saved_ns;   /* layers learned since the last save; time of the last save */
    uint32_t said_next;
    struct said said[SAID];
    struct efs_guess_observation o; /* the current observation */
    uint16_t ids[EFS_GUESS_IDS];
    float weights[EFS_GUESS_IDS];
    struct efs_prediction guesses[EFS_GUESS_CANDIDATES];
    uint8_t distance[EFS_GUESS_CANDIDATES];
};
_Static_assert(sizeof(struct guesser) <= EFS_GUESS_THREAD_BYTES, "what the budget counts");

/*
 * The predictor's tables are saved in the state directory for the next mount:
 *
 *     0  "EFSLEARN"    8  u64 content hash, little-endian    16  output of efs_predict_save(), with its checksum
 *
 * Without lock; errors are logged.
 */
#define MAGIC "EFSLEARN"
#define HEADER_BYTES 16u

static void guess_header(const struct efs *fs, uint8_t header[HEADER_BYTES])
{
    uint64_t hash = htole64(fs->store->sb.content_hash);
    memcpy(header, MAGIC, 8);
    memcpy(header + 8, &hash, sizeof(hash));
}

static errint_t guess_path(const struct efs *fs, char path[EFS_STATE_PATH_BYTES], struct efs_error *err)
{
    return efs_state_path("guesses", fs->store->sb.content_hash, "bin", path, EFS_STATE_PATH_BYTES, err);
}

static void guess_save(struct efs *fs, const struct efs_predictor *predictor)
{
    char path[EFS_STATE_PATH_BYTES];
    struct efs_error err = {""};
    if (fs->options.no_state)
        return;
    errint_t rc = guess_path(fs, path, &err);
    size_t bytes = HEADER_BYTES + efs_predict_save(predictor, NULL, 0);
    uint8_t *data = rc == 0 ? efs_sys_malloc(bytes) : NULL;
    if (rc == 0 && !data)
        rc = efs_fail(&err, -ENOMEM, "%s: no memory", path);
    if (rc == 0) {
        guess_header(fs, data);
        efs_predict_save(predictor, data + HEADER_BYTES, bytes - HEADER_BYTES);
        rc = efs_state_save(path, data, bytes, &err);
    }
    if (rc < 0)
        efs_log(fs, EFS_LOG_WARNING, "what was learned for guesses is not saved: %s", err.text);
    free(data);
}

static int guess_read_piece(void *from, uint64_t at, void *bytes, size_t size)
{
    return efs_sys_pread_all(*(const int *)from, bytes, size, HEADER_BYTES + at);
}

static errint_t guess_read(const struct efs *fs, int fd, uint64_t bytes, struct efs_predictor *predictor)
{
    uint8_t wanted[HEADER_BYTES], header[HEADER_BYTES];
    if (bytes < HEADER_BYTES)
        return -EINVAL;
    errint_t rc = efs_sys_pread_all(fd, header, HEADER_BYTES, 0);
    guess_header(fs, wanted);
    if (rc == 0 && memcmp(header, wanted, HEADER_BYTES) != 0)
        rc = -EINVAL;
    return rc < 0 ? rc : efs_predict_load_from(predictor, guess_read_piece, &fd, bytes - HEADER_BYTES);
}

/* Loads saved tables into a predictor without sequences. If the file is missing or does not fit, the predictor stays
 * empty. */
static void guess_load(struct efs *fs, struct efs_predictor *predictor)
{
    char path[EFS_STATE_PATH_BYTES];
    struct efs_error err = {""};
    struct stat st;
    if (fs->options.no_state || guess_path(fs, path, &err) < 0)
        return;
    int fd = efs_regular_open_path(path, &st, &err);
    if (fd == -ENOENT)
        return;
    if (fd < 0) {
        efs_log(fs, EFS_LOG_WARNING, "what was learned for guesses is not used: %s", err.text);
        return;
    }
    errint_t rc = guess_read(fs, fd, (uint64_t)st.st_size, predictor);
    efs_sys_close(fd);
    if (rc == -EINVAL)
        efs_log(fs, EFS_LOG_INFO, "guesses begin anew: %s is of another store or predictor", path);
    else if (rc < 0)
        efs_log(fs, EFS_LOG_WARNING, "what was learned for guesses is not used: %s: %s", path,
                rc == -EUCLEAN ? "damaged; it is replaced when the store is closed" : strerror(-rc));
}

/* Saves the tables if SAVE_PASSES passes were learned since the last save. Without lock. */
static void guesser_save(struct guesser *t)
{
    struct efs *fs = t->g->fs;
    t->saved_ns = efs_now_ns();
    if (!t->predictor || t->learned < (uint64_t)SAVE_PASSES * efs_cache_layers(fs))
        return;
    guess_save(fs, t->predictor);
    t->learned = 0;
}

static void guesser_forget(struct guesser *t)
{
    efs_predictor_free(t->predictor);
    t->predictor = NULL;
    t->chosen = t->window = t->window_most = 0;
    memset(t->said, 0, sizeof(t->said));
}

/* Replaces the predictor by one for this number of experts per token. Without lock. */
static void guesser_new(struct guesser *t, unsigned chosen)
{
    struct efs_guessing *g = t->g;
    struct efs *fs = g->fs;
    guesser_forget(t);
    efs_lock(fs);
    uint64_t bytes = g->predictor_most_bytes; /* the budget may have changed since */
    efs_unlock(fs);
    t->chosen = chosen;
    t->distances = efs_cache_layers(fs) < EFS_GUESS_DISTANCES ? efs_cache_layers(fs) : EFS_GUESS_DISTANCES;
    const struct efs_predict_config config = {.kind = EFS_PREDICT_MIXED,
                                              .layers = efs_cache_layers(fs),
                                              .experts = efs_cache_width(fs),
                                              .chosen = chosen,
                                              .distances = t->distances,
                                              .sequences = EFS_GUESS_SEQUENCES,
                                              .memory_bytes = bytes};
    int rc = efs_predictor_new(&config, &t->predictor);
    if (rc < 0)
        efs_log(fs, EFS_LOG_WARNING, "nothing is predicted: %s",
                rc == -E2BIG ? "the predictor takes more than its share of the budget" : strerror(-rc));
    t->learned = 0;
    t->saved_ns = efs_now_ns();
    if (t->predictor)
        guess_load(fs, t->predictor);
    efs_lock(fs);
    g->chosen = chosen;
    g->predictor_error = rc;
    g->predictor_bytes = t->predictor ? efs_predict_bytes(t->predictor) : 0;
    efs_unlock(fs);
}

/*
 * Estimates the number of experts per token: the most experts that a layer of a pass requests. The estimate only falls,
 * because passes of a prompt request more.
 */
static void guesser_count(struct guesser *t)
{
    uint32_t most = t->o.count < EFS_PREDICT_MAX_CHOSEN ? t->o.count : EFS_PREDICT_MAX_CHOSEN;
    t->window_most = most > t->window_most ? most : t->window_most;
    if (++t->window < efs_cache_layers(t->g->fs))
        return;
    most = t->window_most;
    t->window = t->window_most = 0;
    if (t->chosen == 0 || most < t->chosen)
        guesser_new(t, most);
}

/* ---- scores of earlier predictions ---- */

static bool was_chosen(const struct guesser *t, uint16_t id)
{
    for (uint32_t i = 0; i < t->o.count; i++)
        if (t->ids[i] == id)
            return true;
    return false;
}

static void compare(const struct guesser *t, const struct said *said)
{
    struct efs_guess_scores *score = &t->g->scores[said->distance];
    score->layers++;
    score->chosen += t->o.count;
    score->named_k += said->count < t->chosen ? said->count : t->chosen;
    for (uint32_t i = 0; i < said->count; i++)
        if (was_chosen(t, said->ids[i])) {
            score->hits_k += i < t->chosen;
            score->hits_2k++;
        }
}

/* Scores the predictions for this position. Lock held. Layers of a prompt are not scored: they request nearly all
 * experts. */
static void compare_all(struct guesser *t)
{
    for (uint32_t i = 0; i < SAID; i++) {
        struct said *said = &t->said[i];
        if (!said->used || said->sequence != t->o.sequence || said->due > t->o.now)
            continue;
        if (said->due == t->o.now && t->o.count <= t->chosen)
            compare(t, said);
        said->used = false;
    }
}

static void remember(struct guesser *t, uint8_t distance, const struct efs_prediction *guesses, uint32_t count)
{
    struct said *said = &t->said[t->said_next++ % SAID];
    *said = (struct said){.used = true,
                          .sequence = t->o.sequence,
                          .due = t->o.now + distance,
                          .distance = distance,
                          .count = count < 2 * t->chosen ? count : 2 * t->chosen};
    for (uint32_t i = 0; i < said->count; i++)
        said->ids[i] = guesses[i].expert;
}

/* ---- predictions ---- */

/* Drops predictions of experts that a layer does not have: the predictor assumes the width of the widest layer. Returns
 * the number that remain. */
static int guesser_drop_missing(const struct guesser *t, struct efs_prediction *guesses, int count)
{
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (guesses[i].expert < efs_cache_layer_width(t->g->fs, guesses[i].layer))
            guesses[kept++] = guesses[i];
    return kept;
}

/* Predicts the next layers. Without lock. Returns the number of predictions. */
static uint32_t guesser_guess(struct guesser *t)
{
    uint32_t count = 0, room = 4 * t->chosen < EFS_GUESS_AT_ONCE ? 4 * t->chosen : EFS_GUESS_AT_ONCE;
    for (uint8_t d = 1; d <= t->distances; d++) {
        int n = efs_predict(t->predictor, t->o.sequence, d, t->guesses + count, room, NULL);
        if (n < 0)
            continue;
        n = guesser_drop_missing(t, t->guesses + count, n);
        remember(t, d, t->guesses + count, (uint32_t)n);
        while (n > 0 && t->guesses[count + (uint32_t)n - 1].probability < LEAST_PROBABILITY)
            n--;
        memset(t->distance + count, d, (size_t)n);
        count += (uint32_t)n;
    }
    return count;
}

/* Lock held. */
static void guesser_offer(struct guesser *t, uint32_t count)
{
    struct efs_guessing *g = t->g;
    const struct efs_guess_sequence *s = g->queue ? efs_guess_find(g, t->o.sequence) : NULL;
    if (!s)
        return;
    for (uint32_t i = 0; i < count; i++) {
        float p = t->guesses[i].probability;
        g->candidates[i] = (struct efs_governor_candidate){.layer = t->guesses[i].layer,
                                                           .expert = t->guesses[i].expert,
                                                           .due = t->o.now + t->distance[i],
                                                           .probability = p < 1 ? p : 1};
        g->distances[i] = t->distance[i];
    }
    efs_guess_offer(g->fs, s->id, s->now, count);
}

static void guesser_begin(struct guesser *t)
{
    if (efs_predict_begin(t->predictor, t->o.sequence) != -ENOSPC)
        return;
    guesser_new(t, t->chosen); /* the predictor has stale sequences: their ends did not fit into the ring */
    if (t->predictor)
        efs_predict_begin(t->predictor, t->o.sequence);
}

/* Handles an observation. Without lock. */
static void guesser_take(struct guesser *t)
{
    struct efs *fs = t->g->fs;
    const struct efs_predict_observation seen = {
        .layer = t->o.layer, .experts = t->ids, .scores = t->o.scored ? t->weights : NULL, .count = t->o.count};
    uint32_t count = 0;
    if (t->o.now == EFS_GUESS_NOWHERE) {
        if (t->predictor)
            efs_predict_end(t->predictor, t->o.sequence);
        return;
    }
    guesser_count(t);
    if (t->predictor)
        guesser_begin(t);
    if (t->predictor && efs_predict_observe(t->predictor, t->o.sequence, &seen) == 0) {
        t->learned++;
        efs_lock(fs);
        compare_all(t);
        efs_unlock(fs);
        count = guesser_guess(t);
    }
    if (!count || !t->o.guess)
        return;
    efs_lock(fs);
    guesser_offer(t, count);
    efs_unlock(fs);
}

/* Lock held. */
static void line_take(struct guesser *t)
{
    struct efs_guessing *g = t->g;
    size_t at = g->line_taken++ % EFS_GUESS_LINE;
    t->o = g->line[at];
    memcpy(t->ids, g->line_ids + at * EFS_GUESS_IDS, t->o.count * sizeof(t->ids[0]));
    if (t->o.scored)
        memcpy(t->weights, g->line_weights + at * EFS_GUESS_IDS, t->o.count * sizeof(t->weights[0]));
}

void *efs_guess_thread(void *arg)
{
    struct efs_guessing *g = arg;
    struct efs *fs = g->fs;
    struct guesser *t = efs_sys_calloc(1, sizeof(*t));
    if (t)
        t->g = g;
    else
        efs_log(fs, EFS_LOG_WARNING, "nothing is predicted: no memory");
    efs_lock(fs);
    while (t && !g->stop) {
        bool other = t->chosen && !g->on, idle = g->line_put == g->line_taken;
        if (idle && !other) {
            pthread_cond_wait(&g->wake, &fs->lock);
            continue;
        }
        if (!idle)
            line_take(t);
        if (other)
            g->chosen = 0;
        efs_unlock(fs);
        if (other || efs_now_ns() - t->saved_ns > SAVE_NS)
            guesser_save(t);
        if (other)
            guesser_forget(t);
        if (!idle)
            guesser_take(t);
        efs_lock(fs);
    }
    efs_unlock(fs);
    if (t) {
        guesser_save(t);
        guesser_forget(t);
    }
    free(t);
    return NULL;
}
