/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer's corpus, and with it every input that ever failed, once more: run from the repository's root. */
#include "../fuzz/fuzz_source.c"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define CORPUS "tests/fuzz/corpus/fuzz_source"

static void run_case(const char *name)
{
    char *path = NULL;

    assert_true(asprintf(&path, "%s/%s", CORPUS, name) > 0);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    free(path);
    static uint8_t data[1 << 20];
    size_t size = fread(data, 1, sizeof(data), file);
    assert_true(feof(file));
    fclose(file);
    /* A heap block of the right size, so that a sanitizer sees every byte read past it. */
    uint8_t *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void corpus_is_read_or_refused(void **state)
{
    DIR *dir = opendir(CORPUS);
    struct dirent *entry;
    size_t count = 0;

    (void)state;
    if (!dir)
        fail_msg(CORPUS ": not found from here; run from the repository's root");
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.') {
            run_case(entry->d_name);
            count++;
        }
    closedir(dir);
    assert_true(count >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(corpus_is_read_or_refused)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
