/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_prefetch.c - the queue of predictions: read order, demand first, raise, cancel and drop, caps; and every read is
 * counted once.
 */
#include "test.h"
#include "cases.h"
#include "prefetch.h"

enum { LAYERS = 6, EXPERTS = 8, SEQUENCES = 3, GUESSES = 8 };

static const struct efs_prefetch_config wide = {.layers = LAYERS,
                                                .experts = EXPERTS,
                                                .sequences = SEQUENCES,
                                                .predictions = GUESSES,
                                                .in_flight_bytes = 1000,
                                                .resident_bytes = 1000};

static struct efs_prefetch *queue_new(const struct efs_prefetch_config *config)
{
    struct efs_prefetch *q;

    assert_int_equal(efs_prefetch_new(config, &q), 0);
    return q;
}

static struct efs_prefetch_prediction guess(unsigned layer, unsigned expert, int64_t due, double worth)
{
    return (struct efs_prefetch_prediction){(uint16_t)layer, (uint16_t)expert, due, (float)worth, 10};
}

static struct efs_prefetch_counts counts_of(const struct efs_prefetch *q)
{
    struct efs_prefetch_counts counts;

    efs_prefetch_counts(q, &counts);
    return counts;
}

/* ---- scripts ----------------------------------------------------------------------------------------------------- */

/*
 * A step is a verb with its arguments, and the actions that result: R13: read expert 3 of layer 1; X13: cancel, D13:
 * drop, !13: raise. Steps end with a semicolon.
 *
 *     offer S@N GUESS...  predictions of sequence S at position N; a GUESS is LAYER EXPERT = WORTH, *BYTES (default
 * 10),
 *                         /DUE (default the next position of its layer)
 *     next ACTIONS        no demand is waiting or being read
 *     busy WAITING READS  next, with this number of waiting and running demand reads: no action
 *     done LE ACTIONS     the read of expert E of layer L has completed; failed LE: it failed
 *     asked S@N E ACTIONS sequence S requests expert E of the layer at position N
 *     end S ACTIONS       sequence S has ended
 *     lost LE             the cache has evicted the expert
 *     caps R H            bytes in flight, bytes held
 *     count NAME N        a counter of efs_prefetch_counts()
 */
static const struct script {
    const char *what, *steps;
} scripts[] = {
    {"most worth first, then soonest due",
     "offer 1@0 11=.2 12=.9 33=.5 24=.5; next R12; next R24; next R33; next R11; next;"
     "count issued 4; count issued_bytes 40;"},
    {"demand goes first", "offer 1@0 11=1; busy 1 0; busy 0 1; busy 3 2; next R11;"},
    /* 11 is in flight: it stays */
    {"a new offer replaces the last one",
     "offer 1@0 11=.9 22=.5 33=.4; next R11; offer 1@0 22=.1 44=.2; next R44; next R22; next;"
     "count offered 5; count replaced 2; done 11; asked 1@1 1; count used 1;"},
    /* done: the cache owns it. 12 was never started */
    {"a read that is asked for is raised", "offer 1@0 11=.9 12=.5; next R11; asked 1@1 1 !11; done 11; count late 1;"
                                           "count expired 1; next;"},
    {"a queued guess that is asked for is demand", "offer 1@0 11=.9; asked 1@1 1; next; count unread 1;"},
    /* the cap is below the bytes held: no further reads, and the held expert stays */
    {"caps can change",
     "offer 1@0 21=.9 22=.8 33=.7; next R21; done 21; caps 1000 5; next; asked 1@2 1; count used 1;"},
    /* 12 was cancelled in time, 13 was not */
    {"predictions whose layer has passed go",
     "offer 1@0 11=.9 12=.8 13=.7 14=.6 25=.1; next R11; next R12; next R13; done 11;"
     "asked 1@1 7 X13X12D11; failed 12; done 13 D13; next R25; count expired 1;"
     "count cancelled 1; count wasted 2; count wasted_bytes 20;"},
    /* and it is not read twice at once */
    {"a cancelled read can be raised",
     "offer 1@0 11=.9; next R11; end 1 X11; offer 2@0 11=.9; next; asked 2@1 1 !11; done 11;"
     "count late 1;"},
    {"another sequence may still want it", "offer 1@0 11=.5; offer 2@0 11=.9/7; next R11; next; done 11; asked 1@1 2;"
                                           "count wasted 0; end 1; end 2 D11; end 3; count wasted 1;"},
    {"a failed read is not retried",
     "offer 1@0 11=.5; next R11; failed 11; next; count failed 1; asked 1@1 1; count used 0;"},
    /* the first time it is not held yet */
    {"what the cache evicts was in vain",
     "offer 1@0 11=.5; lost 11; next R11; done 11; lost 11; asked 1@1 1; count wasted 1;"
     "count used 0;"},
    /* 12 has to wait, 13 need not */
    {"bytes under way are capped",
     "caps 25 1000; offer 1@0 11=.9 12=.5*20 13=.4; next R11; next R13; next; done 13; next;"
     "done 11; next R12;"},
    /* 53 and 44 are due later or at the same time and evict nothing, regardless of their worth; 35 replaces 42, which
     * is due later */
    {"sooner ones are never evicted", "caps 1000 20; offer 1@0 21=.1 42=.2; next R42; next R21; done 42;"
                                      "offer 1@0 53=.9 44=.8; next; done 21; next; offer 1@0 35=.01; next D42R35;"
                                      "offer 1@0 36=.9; next; count wasted 1;"},
    /* only half of the bytes that 33 needs could be evicted; then it needs more than the cap */
    {"nothing is evicted in vain", "caps 1000 20; offer 1@0 11=.1 52=.2; next R52; next R11; done 52; done 11;"
                                   "offer 1@0 33=1*15; next; offer 1@0 33=1*21; next;"},
};

static void script_offer(struct efs_prefetch *q, uint64_t sequence, int64_t now, char *words)
{
    struct efs_prefetch_prediction predictions[GUESSES];
    unsigned count = 0;
    char *rest;

    for (const char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        unsigned layer = (unsigned)(word[0] - '0'), expert = (unsigned)(word[1] - '0');
        const char *bytes = strchr(word, '*'), *due = strchr(word, '/');
        int64_t ahead = (layer + LAYERS - (unsigned)(now % LAYERS) - 1) % LAYERS + 1;

        predictions[count] = guess(layer, expert, due ? atoi(due + 1) : now + ahead, atof(word + 3));
        predictions[count].bytes = bytes ? (uint64_t)atoi(bytes + 1) : 10;
        count++;
    }
    assert_int_equal(efs_prefetch_offer(q, sequence, now, predictions, count), 0);
}

static uint64_t script_count(const struct efs_prefetch *q, const char *name)
{
    const struct efs_prefetch_counts c = counts_of(q);
    const struct {
        const char *name;
        uint64_t count;
    } counts[] = {{"offered", c.offered},
                  {"replaced", c.replaced},
                  {"issued", c.issued},
                  {"issued_bytes", c.issued_bytes},
                  {"used", c.used},
                  {"late", c.late},
                  {"unread", c.unread},
                  {"expired", c.expired},
                  {"cancelled", c.cancelled},
                  {"wasted", c.wasted},
                  {"wasted_bytes", c.wasted_bytes},
                  {"failed", c.failed}};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        if (strcmp(name, counts[i].name) == 0)
            return counts[i].count;
    fail_msg("no count is called %s", name);
    return 0;
}

static void script_step(struct efs_prefetch *q, const struct script *script, const char *step)
{
    const struct efs_prefetch_action *actions = NULL;
    struct efs_prefetch_config caps = wide;
    struct efs_prefetch_demand demand = {0, 0};
    unsigned layer, expert, position;
    uint64_t sequence;
    size_t count = 0;
    char words[100] = "", name[20], did[100] = "", should[40] = "";

    if (sscanf(step, "offer %" SCNu64 "@%u %99[^;]", &sequence, &position, words) == 3) {
        script_offer(q, sequence, position, words);
    } else if (sscanf(step, "busy %u %u", &demand.waiting, &demand.in_flight) == 2) {
        efs_prefetch_next(q, &demand, &actions, &count);
    } else if (sscanf(step, "done %1u%1u %39s", &layer, &expert, should) >= 2) {
        efs_prefetch_done(q, layer, expert, true, &actions, &count);
    } else if (sscanf(step, "failed %1u%1u", &layer, &expert) == 2) {
        efs_prefetch_done(q, layer, expert, false, &actions, &count);
    } else if (sscanf(step, "lost %1u%1u", &layer, &expert) == 2) {
        efs_prefetch_evicted(q, layer, expert);
    } else if (sscanf(step, "asked %" SCNu64 "@%u %u %39s", &sequence, &position, &expert, should) >= 3) {
        const uint16_t experts[] = {(uint16_t)expert};
        assert_int_equal(efs_prefetch_requested(q, sequence, position, position % LAYERS, experts, 1, &actions, &count),
                         0);
    } else if (sscanf(step, "end %" SCNu64 " %39s", &sequence, should) >= 1) {
        efs_prefetch_end(q, sequence, &actions, &count);
    } else if (sscanf(step, "caps %" SCNu64 " %" SCNu64, &caps.in_flight_bytes, &caps.resident_bytes) == 2) {
        efs_prefetch_set_caps(q, &caps);
    } else if (sscanf(step, "count %19s %u", name, &position) == 2) {
        if (script_count(q, name) != position)
            fail_msg("%s: %s is %" PRIu64 ", not %u", script->what, name, script_count(q, name), position);
    } else if (strncmp(step, "next", 4) == 0) {
        sscanf(step + 4, "%39s", should);
        efs_prefetch_next(q, &demand, &actions, &count);
    } else {
        fail_msg("%s: what is \"%s\"?", script->what, step);
    }
    for (size_t i = 0; i < count; i++)
        snprintf(did + strlen(did), sizeof(did) - strlen(did), "%c%u%u", "R!XD"[actions[i].what], actions[i].layer,
                 actions[i].expert);
    if (strcmp(did, should) != 0)
        fail_msg("%s: \"%s\": %s", script->what, step, did);
}

TEST(scripted_cases)
{
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        struct efs_prefetch *q = queue_new(&wide);
        char *steps = strdup(scripts[i].steps), *rest;

        for (char *step = strtok_r(steps, ";", &rest); step; step = strtok_r(NULL, ";", &rest))
            script_step(q, &scripts[i], step + strspn(step, " "));
        free(steps);
        efs_prefetch_free(q);
    }
    efs_prefetch_free(NULL);
}

TEST(refuses_bad_numbers)
{
    struct efs_prefetch_config bad[6];
    struct efs_prefetch_prediction wrong[] = {guess(LAYERS, 0, 1, 1), guess(0, EXPERTS, 1, 1), guess(0, 0, 1, -1),
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
    bad[3].predictions = 0;
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
    assert_int_equal(efs_prefetch_offer(q, 1, 4, NULL, 0), -EINVAL); /* positions must not decrease */
    assert_int_equal(efs_prefetch_requested(q, 1, 4, 0, NULL, 0, &actions, &count), -EINVAL);
    assert_int_equal(efs_prefetch_requested(q, 1, 5, LAYERS, NULL, 0, &actions, &count), -EINVAL);
    assert_int_equal(efs_prefetch_requested(q, 1, 5, 0, &beyond, 1, &actions, &count), -EINVAL);
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

/* Applies the actions to the model of the cache and checks that each is valid. */
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
    struct efs_prefetch_prediction predictions[GUESSES];
    unsigned count = cases_below(&w->cases, GUESSES + 1), kept = 0;

    for (unsigned i = 0; i < count; i++) {
        int64_t due = now + 1 + cases_below(&w->cases, 4);
        unsigned unit = (unsigned)(due % LAYERS) * EXPERTS + cases_below(&w->cases, EXPERTS);

        predictions[kept] = guess(unit / EXPERTS, unit % EXPERTS, due, cases_uniform(&w->cases));
        predictions[kept].bytes = w->bytes[unit];
        kept += w->units[unit] == THERE_NOT;
    }
    assert_int_equal(efs_prefetch_offer(w->q, sequence, now, predictions, kept), 0);
}

static void world_ask(struct world *w, uint64_t sequence, int64_t now)
{
    unsigned layer = (unsigned)(now % LAYERS);
    const uint16_t experts[] = {(uint16_t)cases_below(&w->cases, EXPERTS), (uint16_t)cases_below(&w->cases, EXPERTS)};
    const struct efs_prefetch_action *actions;
    size_t count;

    assert_int_equal(efs_prefetch_requested(w->q, sequence, now, layer, experts, 2, &actions, &count), 0);
    world_do(w, actions, count, false);
    for (unsigned i = 0; i < 2; i++) /* the queue no longer holds a used expert: it is the cache's */
        if (w->units[layer * EXPERTS + experts[i]] == THERE_HELD)
            w->units[layer * EXPERTS + experts[i]] = THERE_NOT;
}

static void world_read(struct world *w)
{
    const struct efs_prefetch_action *actions;
    unsigned unit = cases_below(&w->cases, LAYERS * EXPERTS);
    size_t count;

    if (cases_below(&w->cases, 2)) {
        efs_prefetch_next(w->q, &(struct efs_prefetch_demand){0, 0}, &actions, &count);
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
    uint64_t reading = 0, held = 0, reading_bytes = 0, resident_bytes = 0;

    for (unsigned u = 0; u < LAYERS * EXPERTS; u++) {
        reading += w->units[u] == THERE_READING;
        reading_bytes += w->units[u] == THERE_READING ? w->bytes[u] : 0;
        held += w->units[u] == THERE_HELD;
        resident_bytes += w->units[u] == THERE_HELD ? w->bytes[u] : 0;
    }
    assert_int_equal(c.issued, c.used + c.late + c.wasted + c.cancelled + c.failed + reading + held);
    assert_true(reading_bytes <= config->in_flight_bytes && reading_bytes + resident_bytes <= config->resident_bytes);
    assert_true(c.offered >= c.replaced + c.expired);
}

TEST(every_read_is_counted_once)
{
    struct efs_prefetch_config config = wide;
    uint64_t used = 0, late = 0, cancelled = 0, wasted = 0;

    config.in_flight_bytes = 60;
    config.resident_bytes = 120;
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
    assert_true(used > 20 && late > 20 && cancelled > 5 && wasted > 20); /* every outcome occurred */
}

TEST_MAIN(NULL, NULL)
