/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mutate.c - a fuzzer as a test, without clang: runs the corpus, then random mutations of it. Linked with fuzz_NAME.c
 * it is test_fuzz_NAME. Case i is generated from SEED + i (default 1); EXPERTFS_FUZZ_CASES is the number of cases. When
 * a case fails, crashes or hangs, the program prints the command that repeats it. Run from the repository's root.
 */
#include "test.h"
#include "crash_report.h"
#include "fixture.h"
#include "fuzz.h"

#include <dirent.h>

#define MUTATE_CORPUS_MOST 200
#define MUTATE_BYTES (1u << 20) /* maximum size of an input */
#define MUTATE_SECONDS 240      /* time limit of a case */

/* Number of cases in `make test`: about 10 seconds for each program under ASan. */
static const struct {
    const char *name;
    unsigned cases;
} programs[] = {{"fuzz_client", 800},    {"fuzz_codec", 4000},    {"fuzz_export", 2000},
                {"fuzz_index", 20000},   {"fuzz_layout", 100000}, {"fuzz_peer", 100000},
                {"fuzz_source", 100000}, {"fuzz_store", 1500},    {"fuzz_texts", 20000}};

static struct {
    const char *name, *program;
    unsigned cases; /* default number of cases */
    struct {
        uint8_t *data;
        size_t bytes;
    } corpus[MUTATE_CORPUS_MOST];
    size_t count;
    uint64_t at;    /* seed of the current case; 0: a file of the corpus */
    char file[300]; /* path of the current file of the corpus */
    uint8_t input[MUTATE_BYTES];
} mutate;

static void mutate_tell(void)
{
    char text[500];
    int n = mutate.at ? snprintf(text, sizeof(text), "SEED=%llu EXPERTFS_FUZZ_CASES=1 %s repeats it\n",
                                 (unsigned long long)mutate.at, mutate.program)
                      : snprintf(text, sizeof(text), "%s of the corpus\n", mutate.file);
    if (n > 0 && write(2, text, (size_t)n) < 0)
        _exit(1);
}

/* Runs the fuzzer on a copy in a heap block of this size, so that a sanitizer detects every read past its end. */
static void mutate_run(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    alarm(MUTATE_SECONDS);
    LLVMFuzzerTestOneInput(copy, bytes);
    alarm(0);
    free(copy);
}

static uint64_t mutate_number(uint64_t *state)
{
    static const uint64_t numbers[] = {
        0,     1,     2,         7,          8,          255,       256,        4095,          4096,
        65535, 65536, INT32_MAX, UINT32_MAX, 1ull << 32, INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
    uint64_t n = fixture_random(state);
    return n % 3 ? numbers[n / 3 % (sizeof(numbers) / sizeof(*numbers))] : fixture_random(state) >> n / 3 % 64;
}

/* Applies one random change to the input. Returns the new length. */
static size_t mutate_once(uint8_t *input, size_t bytes, uint64_t *state)
{
    static const char *const texts[] = {"0",     "-1",  "18446744073709551615",
                                        "1e308", "nan", "\"",
                                        "{",     "}",   "[",
                                        "]",     ",",   ":",
                                        "\n",    "*",   "?",
                                        "=",     "%",   "\\u0000",
                                        "auto",  " "};
    uint64_t how = fixture_random(state);
    size_t at = bytes ? fixture_random(state) % bytes : 0, left = bytes - at, part = 1 + how / 16 % 64;
    part = part < left ? part : left;
    switch (how % 10) {
    case 0:
    case 1: /* flip a bit */
        if (bytes)
            input[at] ^= (uint8_t)(1u << how / 16 % 8);
        return bytes;
    case 2: /* overwrite a byte */
        if (bytes)
            input[at] = (uint8_t)fixture_random(state);
        return bytes;
    case 3:
    case 4: { /* overwrite a number */
        uint64_t number = mutate_number(state);
        size_t width = 1ull << how / 16 % 4;
        memcpy(input + at, &number, width < left ? width : left);
        return bytes;
    }
    case 5: /* delete a part */
        memmove(input + at, input + at + part, left - part);
        return bytes - part;
    case 6: /* truncate */
        return bytes - part;
    case 7: /* repeat a part */
        if (bytes + part > MUTATE_BYTES)
            return bytes;
        memmove(input + at + part, input + at, left);
        return bytes + part;
    case 8: { /* insert a text */
        const char *text = texts[how / 16 % (sizeof(texts) / sizeof(*texts))];
        size_t length = strlen(text);
        if (bytes + length > MUTATE_BYTES)
            return bytes;
        memmove(input + at + length, input + at, left);
        memcpy(input + at, text, length);
        return bytes + length;
    }
    default: { /* overwrite with a part of a corpus file */
        size_t other = fixture_random(state) % mutate.count, from;
        if (mutate.corpus[other].bytes == 0)
            return bytes;
        from = fixture_random(state) % mutate.corpus[other].bytes;
        part = mutate.corpus[other].bytes - from < part ? mutate.corpus[other].bytes - from : part;
        if (at + part > MUTATE_BYTES)
            return bytes;
        memcpy(input + at, mutate.corpus[other].data + from, part);
        return at + part > bytes ? at + part : bytes;
    }
    }
}

static void mutate_read_corpus(void)
{
    char folder[200];
    snprintf(folder, sizeof(folder), "tests/fuzz/corpus/%s", mutate.name);
    DIR *dir = opendir(folder);
    struct dirent *entry;
    if (!dir)
        fail_msg("%s: not found from here; run from the repository's root", folder);
    while ((entry = readdir(dir)) && mutate.count < MUTATE_CORPUS_MOST)
        if (entry->d_name[0] != '.') {
            snprintf(mutate.file, sizeof(mutate.file), "tests/fuzz/corpus/%s/%.80s", mutate.name, entry->d_name);
            mutate.corpus[mutate.count].data = fixture_read(mutate.file, &mutate.corpus[mutate.count].bytes);
            assert_true(mutate.corpus[mutate.count].bytes <= MUTATE_BYTES);
            mutate_run(mutate.corpus[mutate.count].data, mutate.corpus[mutate.count].bytes);
            mutate.count++;
        }
    closedir(dir);
}

TEST(mutate_all)
{
    const char *given = getenv("SEED"), *cases = getenv("EXPERTFS_FUZZ_CASES");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 1;
    unsigned long count = cases ? strtoul(cases, NULL, 10) : mutate.cases;
    crash_report(mutate_tell);
    mutate_read_corpus();
    assert_true(mutate.count > 0);
    for (unsigned long i = 0; i < count; i++) {
        uint64_t random = mutate.at = seed + i;
        size_t from = fixture_random(&random) % mutate.count, bytes = mutate.corpus[from].bytes;
        memcpy(mutate.input, mutate.corpus[from].data, bytes);
        for (uint64_t changes = 1 + fixture_random(&random) % 8; changes > 0; changes--)
            bytes = mutate_once(mutate.input, bytes, &random);
        mutate_run(mutate.input, bytes);
    }
    print_message("%s: %zu of the corpus, %lu made of these\n", mutate.name, mutate.count, count);
    while (mutate.count > 0)
        free(mutate.corpus[--mutate.count].data);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *name = strstr(slash ? slash : argv[0], "fuzz_");
    for (size_t i = 0; name && i < sizeof(programs) / sizeof(programs[0]); i++)
        if (strcmp(programs[i].name, name) == 0)
            mutate.cases = programs[i].cases;
    mutate.name = name;
    mutate.program = argv[0];
    assert_true(mutate.cases > 0);
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    return TEST_RUN(NULL, NULL);
}
