/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_prefetch.c - the queue of guesses: who is read first and when not, what is raised, cancelled and dropped, caps,
 * and that every read is counted once.
 */
#include "test.h"
#include "cases.h"
#include "prefetch.h"

enum { LAYERS = 6, EXPERTS = 8, SEQUENCES = 3, GUESSES = 8 };

static const struct efs_prefetch_config wide = {.layers = LAYERS,
                                                .experts = EXPERTS,
                                                .sequences = SEQUENCES,
                                                .guesses = GUESSES,
                                                .under_way_bytes = 1000,
                                                .held_bytes = 1000};
static const struct efs_prefetch_demand idle = {0, 0};

static struct efs_prefetch *queue_new(const struct efs_prefetch_config *config)
{
    struct efs_prefetch *q;

    assert_int_equal(efs_prefetch_new(config, &q), 0);
    return q;
}

static struct efs_prefetch_guess guess(unsigned layer, unsigned expert, int64_t due, double worth)
{
    return (struct efs_prefetch_guess){(uint16_t)layer, (uint16_t)expert, due, (float)worth, 10};
}

static void offer(struct efs_prefetch *q, uint64_t sequence, int64_t now, const struct efs_prefetch_guess *guesses,
                  unsigned count)
{
    assert_int_equal(efs_prefetch_offer(q, sequence, now, guesses, count), 0);
}

static void offer_one(struct efs_prefetch *q, uint64_t sequence, int64_t now, struct efs_prefetch_guess one)
{
    offer(q, sequence, now, &one, 1);
}

/* "R13": read expert 3 of layer 1; "X": cancel, "D": drop, "!": raise. */
static void assert_actions(const struct efs_prefetch_action *actions, size_t count, const char *wanted)
{
    char text[200] = "";

    for (size_t i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%c%u%u", "R!XD"[actions[i].what], actions[i].layer,
                 actions[i].expert);
    assert_string_equal(text, wanted);
}

static void assert_next(struct efs_prefetch *q, const char *wanted)
{
    const struct efs_prefetch_action *actions;
    size_t count;

    efs_prefetch_next(q, &idle, &actions, &count);
    assert_actions(actions, count, wanted);
}

static void assert_done(struct efs_prefetch *q, unsigned layer, unsigned expert, bool read, const char *wanted)
{
    const struct efs_prefetch_action *actions;
    size_t count;

    efs_prefetch_done(q, layer, expert, read, &actions, &count);
    assert_actions(actions, count, wanted);
}

static void assert_asked(struct efs_prefetch *q, uint64_t sequence, int64_t now, unsigned expert, const char *wanted)
{
    const uint16_t experts[] = {(uint16_t)expert};
    const struct efs_prefetch_action *actions;
    size_t count;

    assert_int_equal(efs_prefetch_asked(q, sequence, now, (unsigned)(now % LAYERS), experts, 1, &actions, &count), 0);
    assert_actions(actions, count, wanted);
}

static void assert_end(struct efs_prefetch *q, uint64_t sequence, const char *wanted)
{
    const struct efs_prefetch_action *actions;
    size_t count;

    efs_prefetch_end(q, sequence, &actions, &count);
    assert_actions(actions, count, wanted);
}

static struct efs_prefetch_counts counts_of(const struct efs_prefetch *q)
{
    struct efs_prefetch_counts counts;

    efs_prefetch_counts(q, &counts);
    return counts;
}

TEST(worth_most_first_then_due_soonest)
{
    struct efs_prefetch *q = queue_new(&wide);
    const struct efs_prefetch_guess guesses[] = {guess(1, 1, 1, 0.2), guess(1, 2, 1, 0.9), guess(3, 3, 3, 0.5),
                                                 guess(2, 4, 2, 0.5)};

    offer(q, 1, 0, guesses, 4);
    assert_next(q, "R12");
    assert_next(q, "R24");
    assert_next(q, "R33");
    assert_next(q, "R11");
    assert_next(q, "");
    assert_int_equal(counts_of(q).issued, 4);
    assert_int_equal(counts_of(q).issued_bytes, 40);
    efs_prefetch_free(q);
    efs_prefetch_free(NULL);
}

TEST(demand_goes_first)
{
    struct efs_prefetch *q = queue_new(&wide);
    static const struct efs_prefetch_demand busy[] = {{1, 0}, {0, 1}, {3, 2}};
    const struct efs_prefetch_action *actions;
    size_t count;

    offer_one(q, 1, 0, guess(1, 1, 1, 1));
    for (unsigned i = 0; i < 3; i++) {
        efs_prefetch_next(q, &busy[i], &actions, &count);
        assert_int_equal(count, 0);
    }
    assert_next(q, "R11");
    efs_prefetch_free(q);
}

TEST(a_new_offer_takes_the_place_of_the_old)
{
    struct efs_prefetch *q = queue_new(&wide);
    const struct efs_prefetch_guess first[] = {guess(1, 1, 1, 0.9), guess(2, 2, 2, 0.5), guess(3, 3, 3, 0.4)};
    const struct efs_prefetch_guess second[] = {guess(2, 2, 2, 0.1), guess(4, 4, 4, 0.2)};

    offer(q, 1, 0, first, 3);
    assert_next(q, "R11"); /* under way: it stays */
    offer(q, 1, 0, second, 2);
    assert_next(q, "R44");
    assert_next(q, "R22");
    assert_next(q, "");
    assert_int_equal(counts_of(q).offered, 5);
    assert_int_equal(counts_of(q).replaced, 2);
    assert_done(q, 1, 1, true, "");
    assert_asked(q, 1, 1, 1, "");
    assert_int_equal(counts_of(q).used, 1);
    efs_prefetch_free(q);
}

TEST(what_is_asked_for_while_read_is_raised)
{
    struct efs_prefetch *q = queue_new(&wide);
    const struct efs_prefetch_guess guesses[] = {guess(1, 1, 1, 0.9), guess(1, 2, 1, 0.5)};

    offer(q, 1, 0, guesses, 2);
    assert_next(q, "R11");
    assert_asked(q, 1, 1, 1, "!11");
    assert_done(q, 1, 1, true, ""); /* the cache's */
    assert_int_equal(counts_of(q).late, 1);
    assert_int_equal(counts_of(q).expired, 1); /* 12, which nobody began to read */
    assert_next(q, "");
    efs_prefetch_free(q);
}

TEST(what_is_asked_for_while_queued_is_demand)
{
    struct efs_prefetch *q = queue_new(&wide);

    offer_one(q, 1, 0, guess(1, 1, 1, 0.9));
    assert_asked(q, 1, 1, 1, "");
    assert_next(q, "");
    assert_int_equal(counts_of(q).unread, 1);
    efs_prefetch_free(q);
}

/* Caps that fall below what there is: nothing more is read, and what is held stays. */
TEST(caps_can_change)
{
    struct efs_prefetch_config config = wide;
    const struct efs_prefetch_guess guesses[] = {guess(2, 1, 2, 0.9), guess(2, 2, 2, 0.8), guess(3, 3, 3, 0.7)};
    struct efs_prefetch *q = queue_new(&wide);

    offer(q, 1, 0, guesses, 3);
    assert_next(q, "R21");
    assert_done(q, 2, 1, true, "");
    config.held_bytes = 5;
    efs_prefetch_set_caps(q, &config);
    assert_next(q, "");
    assert_asked(q, 1, 2, 1, "");
    assert_int_equal(counts_of(q).used, 1);
    efs_prefetch_free(q);
}

TEST(what_its_layer_has_passed_goes)
{
    struct efs_prefetch *q = queue_new(&wide);
    const struct efs_prefetch_guess guesses[] = {guess(1, 1, 1, 0.9), guess(1, 2, 1, 0.8), guess(1, 3, 1, 0.7),
                                                 guess(1, 4, 1, 0.6), guess(2, 5, 2, 0.1)};

    offer(q, 1, 0, guesses, 5);
    assert_next(q, "R11");
    assert_next(q, "R12");
    assert_next(q, "R13");
    assert_done(q, 1, 1, true, "");
    assert_asked(q, 1, 1, 7, "X13X12D11");
    assert_done(q, 1, 2, false, ""); /* it was cancelled in time */
    assert_done(q, 1, 3, true, "D13");
    assert_next(q, "R25");
    assert_int_equal(counts_of(q).expired, 1);
    assert_int_equal(counts_of(q).cancelled, 1);
    assert_int_equal(counts_of(q).wasted, 2);
    assert_int_equal(counts_of(q).wasted_bytes, 20);
    efs_prefetch_free(q);
}

/* Cancelled, asked for after all before it has ended: the read is raised. */
TEST(a_cancelled_read_can_be_raised)
{
    struct efs_prefetch *q = queue_new(&wide);

    offer_one(q, 1, 0, guess(1, 1, 1, 0.9));
    assert_next(q, "R11");
    assert_end(q, 1, "X11");
    offer_one(q, 2, 0, guess(1, 1, 1, 0.9)); /* not to be read twice at once */
    assert_next(q, "");
    assert_asked(q, 2, 1, 1, "!11");
    assert_done(q, 1, 1, true, "");
    assert_int_equal(counts_of(q).late, 1);
    efs_prefetch_free(q);
}

TEST(another_sequence_may_still_want_it)
{
    struct efs_prefetch *q = queue_new(&wide);

    offer_one(q, 1, 0, guess(1, 1, 1, 0.5));
    offer_one(q, 2, 0, guess(1, 1, 7, 0.9));
    assert_next(q, "R11");
    assert_next(q, ""); /* once */
    assert_done(q, 1, 1, true, "");
    assert_asked(q, 1, 1, 2, "");
    assert_int_equal(counts_of(q).wasted, 0);
    assert_end(q, 1, "");
    assert_end(q, 2, "D11");
    assert_end(q, 3, "");
    assert_int_equal(counts_of(q).wasted, 1);
    efs_prefetch_free(q);
}

TEST(a_failed_read_is_not_tried_again)
{
    struct efs_prefetch *q = queue_new(&wide);

    offer_one(q, 1, 0, guess(1, 1, 1, 0.5));
    assert_next(q, "R11");
    assert_done(q, 1, 1, false, "");
    assert_next(q, "");
    assert_int_equal(counts_of(q).failed, 1);
    assert_asked(q, 1, 1, 1, "");
    assert_int_equal(counts_of(q).used, 0);
    efs_prefetch_free(q);
}

TEST(what_the_cache_evicts_was_in_vain)
{
    struct efs_prefetch *q = queue_new(&wide);

    offer_one(q, 1, 0, guess(1, 1, 1, 0.5));
    efs_prefetch_lost(q, 1, 1); /* not held */
    assert_next(q, "R11");
    assert_done(q, 1, 1, true, "");
    efs_prefetch_lost(q, 1, 1);
    assert_asked(q, 1, 1, 1, "");
    assert_int_equal(counts_of(q).wasted, 1);
    assert_int_equal(counts_of(q).used, 0);
    efs_prefetch_free(q);
}

TEST(bytes_under_way_are_capped)
{
    struct efs_prefetch_config config = wide;
    struct efs_prefetch *q;
    struct efs_prefetch_guess guesses[] = {guess(1, 1, 1, 0.9), guess(1, 2, 1, 0.5), guess(1, 3, 1, 0.4)};

    config.under_way_bytes = 25;
    q = queue_new(&config);
    guesses[1].bytes = 20; /* 12 has to wait, 13 need not */
    offer(q, 1, 0, guesses, 3);
    assert_next(q, "R11");
    assert_next(q, "R13");
    assert_next(q, "");
    assert_done(q, 1, 3, true, "");
    assert_next(q, "");
    assert_done(q, 1, 1, true, "");
    assert_next(q, "R12");
    efs_prefetch_free(q);
}

TEST(sooner_ones_are_never_evicted)
{
    struct efs_prefetch_config config = wide;
    struct efs_prefetch *q;
    const struct efs_prefetch_guess first[] = {guess(2, 1, 2, 0.1), guess(4, 2, 4, 0.2)};
    const struct efs_prefetch_guess later[] = {guess(5, 3, 5, 0.9), guess(4, 4, 4, 0.8)};

    config.held_bytes = 20;
    q = queue_new(&config);
    offer(q, 1, 0, first, 2);
    assert_next(q, "R42");
    assert_next(q, "R21");
    assert_done(q, 4, 2, true, "");
    offer(q, 1, 0, later, 2);
    assert_next(q, ""); /* due later, or no sooner, however much they are worth */
    assert_done(q, 2, 1, true, "");
    assert_next(q, "");
    offer_one(q, 1, 0, guess(3, 5, 3, 0.01));
    assert_next(q, "D42R35");
    offer_one(q, 1, 0, guess(3, 6, 3, 0.9)); /* 35 is under way, 21 sooner */
    assert_next(q, "");
    assert_int_equal(counts_of(q).wasted, 1);
    efs_prefetch_free(q);
}

/* Half of what it needs could be evicted: nothing is. */
TEST(nothing_is_evicted_in_vain)
{
    struct efs_prefetch_config config = wide;
    struct efs_prefetch *q;
    const struct efs_prefetch_guess first[] = {guess(1, 1, 1, 0.1), guess(5, 2, 5, 0.2)};
    struct efs_prefetch_guess large = guess(3, 3, 3, 1);

    config.held_bytes = 20;
    q = queue_new(&config);
    offer(q, 1, 0, first, 2);
    assert_next(q, "R52");
    assert_next(q, "R11");
    assert_done(q, 5, 2, true, "");
    assert_done(q, 1, 1, true, "");
    large.bytes = 15;
    offer_one(q, 1, 0, large);
    assert_next(q, "");
    large.bytes = 21; /* more than there can be */
    offer_one(q, 1, 0, large);
    assert_next(q, "");
    efs_prefetch_free(q);
}

TEST(refuses_bad_numbers)
{
    struct efs_prefetch_config bad[6];
    struct efs_prefetch_guess wrong[] = {guess(LAYERS, 0, 1, 1), guess(0, EXPERTS, 1, 1), guess(0, 0, 1, -1),
                                         guess(0, 0, 1, NAN), guess(0, 0, 1, 1)};
    const uint16_t beyond = EXPERTS;
    const struct efs_prefetch_action *actions;
    struct efs_prefetch *q;
    size_t count;

    for (unsigned i = 0; i < 6; i++)
        bad[i] = wide;
    bad[0].layers = 0;
    bad[1].experts = 0;
    bad[2].sequences = 0;
    bad[3].guesses = 0;
    bad[4].layers = 1025;
    bad[5].experts = 4097;
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(efs_prefetch_new(&bad[i], &q), -EINVAL);
    q = queue_new(&wide);
    wrong[4].bytes = 0;
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(efs_prefetch_offer(q, 1, 0, &wrong[i], 1), -EINVAL);
    assert_int_equal(efs_prefetch_offer(q, 1, -1, NULL, 0), -EINVAL);
    for (uint64_t s = 0; s < SEQUENCES; s++)
        assert_int_equal(efs_prefetch_offer(q, s, 5, NULL, 0), 0);
    assert_int_equal(efs_prefetch_offer(q, SEQUENCES, 0, NULL, 0), -ENOSPC);
    assert_int_equal(efs_prefetch_offer(q, 1, 4, NULL, 0), -EINVAL); /* positions rise */
    assert_int_equal(efs_prefetch_asked(q, 1, 4, 0, NULL, 0, &actions, &count), -EINVAL);
    assert_int_equal(efs_prefetch_asked(q, 1, 5, LAYERS, NULL, 0, &actions, &count), -EINVAL);
    assert_int_equal(efs_prefetch_asked(q, 1, 5, 0, &beyond, 1, &actions, &count), -EINVAL);
    efs_prefetch_done(q, LAYERS, 0, true, &actions, &count);
    assert_int_equal(count, 0);
    efs_prefetch_free(q);
}

/* ---- at random ------------------------------------------------------------------------------------------------- */

enum there { THERE_NOT, THERE_READING, THERE_RAISED, THERE_HELD };

struct world {
    struct efs_prefetch *q;
    struct cases cases;
    enum there units[LAYERS * EXPERTS];
    uint64_t bytes[LAYERS * EXPERTS];
};

/* Do what is said, and see that it can be done. */
static void world_do(struct world *w, const struct efs_prefetch_action *actions, size_t count, bool may_read)
{
    for (size_t i = 0; i < count; i++) {
        enum there *unit = &w->units[actions[i].layer * EXPERTS + actions[i].expert];

        switch (actions[i].what) {
        case EFS_PREFETCH_READ:
            assert_true(may_read && i == count - 1 && *unit == THERE_NOT);
            *unit = THERE_READING;
            break;
        case EFS_PREFETCH_RAISE:
            assert_int_equal(*unit, THERE_READING);
            *unit = THERE_RAISED;
            break;
        case EFS_PREFETCH_CANCEL:
            assert_int_equal(*unit, THERE_READING);
            break;
        default:
            assert_int_equal(*unit, THERE_HELD);
            *unit = THERE_NOT;
        }
    }
}

static void world_offer(struct world *w, uint64_t sequence, int64_t now)
{
    struct efs_prefetch_guess guesses[GUESSES];
    unsigned count = cases_below(&w->cases, GUESSES + 1), kept = 0;

    for (unsigned i = 0; i < count; i++) {
        int64_t due = now + 1 + cases_below(&w->cases, 4);
        unsigned unit = (unsigned)(due % LAYERS) * EXPERTS + cases_below(&w->cases, EXPERTS);

        guesses[kept] = guess(unit / EXPERTS, unit % EXPERTS, due, cases_uniform(&w->cases));
        guesses[kept].bytes = w->bytes[unit];
        kept += w->units[unit] == THERE_NOT;
    }
    offer(w->q, sequence, now, guesses, kept);
}

static void world_ask(struct world *w, uint64_t sequence, int64_t now)
{
    unsigned layer = (unsigned)(now % LAYERS);
    const uint16_t experts[] = {(uint16_t)cases_below(&w->cases, EXPERTS), (uint16_t)cases_below(&w->cases, EXPERTS)};
    const struct efs_prefetch_action *actions;
    size_t count;

    assert_int_equal(efs_prefetch_asked(w->q, sequence, now, layer, experts, 2, &actions, &count), 0);
    world_do(w, actions, count, false);
    for (unsigned i = 0; i < 2; i++) /* used at once, and gone: the cache is no part of this */
        if (w->units[layer * EXPERTS + experts[i]] == THERE_HELD)
            w->units[layer * EXPERTS + experts[i]] = THERE_NOT;
}

static void world_read(struct world *w)
{
    const struct efs_prefetch_action *actions;
    unsigned unit = cases_below(&w->cases, LAYERS * EXPERTS);
    size_t count;

    if (cases_below(&w->cases, 2)) {
        efs_prefetch_next(w->q, &idle, &actions, &count);
        world_do(w, actions, count, true);
    } else if (w->units[unit] == THERE_READING || w->units[unit] == THERE_RAISED) {
        bool mine = w->units[unit] == THERE_READING, read = cases_below(&w->cases, 8) > 0;

        w->units[unit] = mine && read ? THERE_HELD : THERE_NOT;
        efs_prefetch_done(w->q, unit / EXPERTS, unit % EXPERTS, read, &actions, &count);
        world_do(w, actions, count, false);
    }
}

static void assert_sums(const struct world *w, const struct efs_prefetch_config *config)
{
    struct efs_prefetch_counts c = counts_of(w->q);
    uint64_t reading = 0, held = 0, reading_bytes = 0, held_bytes = 0;

    for (unsigned u = 0; u < LAYERS * EXPERTS; u++) {
        reading += w->units[u] == THERE_READING;
        reading_bytes += w->units[u] == THERE_READING ? w->bytes[u] : 0;
        held += w->units[u] == THERE_HELD;
        held_bytes += w->units[u] == THERE_HELD ? w->bytes[u] : 0;
    }
    assert_int_equal(c.issued, c.used + c.late + c.wasted + c.cancelled + c.failed + reading + held);
    assert_true(reading_bytes <= config->under_way_bytes && reading_bytes + held_bytes <= config->held_bytes);
    assert_true(c.offered >= c.replaced + c.expired);
}

TEST(every_read_is_counted_once)
{
    struct efs_prefetch_config config = wide;
    uint64_t used = 0, late = 0, cancelled = 0, wasted = 0;

    config.under_way_bytes = 60;
    config.held_bytes = 120;
    for (uint64_t seed = 1; seed < 20; seed++) {
        struct world w = {.q = queue_new(&config), .cases = {seed}};
        int64_t now[SEQUENCES] = {0};

        for (unsigned u = 0; u < LAYERS * EXPERTS; u++)
            w.bytes[u] = 1 + cases_below(&w.cases, 40);
        for (unsigned step = 0; step < 3000; step++) {
            unsigned s = cases_below(&w.cases, SEQUENCES);

            switch (cases_below(&w.cases, 8)) {
            case 0:
                world_offer(&w, s, now[s]);
                break;
            case 1:
                world_ask(&w, s, ++now[s]);
                break;
            default:
                world_read(&w);
            }
            assert_sums(&w, &config);
        }
        used += counts_of(w.q).used;
        late += counts_of(w.q).late;
        cancelled += counts_of(w.q).cancelled;
        wasted += counts_of(w.q).wasted;
        efs_prefetch_free(w.q);
    }
    assert_true(used > 20 && late > 20 && cancelled > 5 && wasted > 20); /* all of it happened */
}

TEST_MAIN(NULL, NULL)
