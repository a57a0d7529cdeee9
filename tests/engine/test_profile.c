/* SPDX-License-Identifier: Apache-2.0 */
/* The profile: measurements match the store, a saved profile can be loaded, invalid profiles are refused. */
#include "test.h"
#include "fixture.h"
#include "expertfs-pack.h"
#include "expertfs-private.h"
#include "expertfs-profile-private.h"

#include <unistd.h>

#define ROWS 384
#define COLUMNS 512

static struct fixture model;
static struct efs_profile measured;

static int setup(void **state)
{
    *state = &model;
    const struct efs_pack_options options = {.shard_elements = 65536};
    fixture_begin(&model);
    fixture_moe(&model, 2, 5, ROWS, COLUMNS);
    fixture_pack(&model, &options);
    return 0;
}

TEST(test_measure)
{
    struct efs_store *store;
    struct efs_store_info info;
    struct efs_error err = {""};
    unsigned fds = fixture_open_fds();
    assert_int_equal(efs_store_open(model.store, &store, &err), 0);
    efs_store_info(store, &info);
    assert_int_equal(efs_profile_measure(store, 2, 0.01, &measured, &err), -EINVAL);
    assert_int_equal(efs_profile_measure(store, 2, 61, &measured, &err), -EINVAL);
    assert_int_equal(efs_profile_measure(store, 100000, 1, &measured, &err), -EINVAL);
    assert_int_equal(efs_profile_measure(store, 2, 0.2, &measured, &err), 0);
    assert_true(measured.content_hash == info.content_hash);
    assert_true(measured.layers == 2 && measured.experts == 5 && measured.tensors == 3 && measured.workers == 2);
    assert_true(measured.shards == 3);
    assert_true(measured.full_bytes == 3.0 * 2 * ROWS * COLUMNS);
    assert_true(measured.sm_bytes == 3.0 * (ROWS * COLUMNS + 4096)); /* one page more: start and end are inside pages */
    assert_true(measured.coded_bytes == measured.sm_bytes + measured.e_bytes);
    assert_true(measured.rho > 0.2 && measured.rho < 0.6);
    assert_true(measured.e_bytes >= measured.rho * measured.sm_bytes - 1);
    assert_string_equal(measured.cpu_path, efs_cpu_path());
    assert_true(measured.measured_at > 1700000000);
    assert_true(measured.disk_bytes_per_second > 1 && measured.decode_bytes_per_second > 1);
    assert_true(measured.read_latency_ns > 0);
    assert_true(measured.disk_spread >= 0 && measured.decode_spread >= 0);
    /* sm_read_ns, e_read_ns and decode_ns are per average tensor and shard */
    double disk = measured.disk_bytes_per_second / 1e9;
    assert_true(measured.sm_read_ns * disk / (ROWS * COLUMNS + 4096) > 0.999 &&
                measured.sm_read_ns * disk / (ROWS * COLUMNS + 4096) < 1.001);
    assert_true(measured.e_read_ns * disk * 9 / measured.e_bytes > 0.999 &&
                measured.e_read_ns * disk * 9 / measured.e_bytes < 1.001);
    assert_true(measured.decode_ns * measured.decode_bytes_per_second / 1e9 * 9 / measured.full_bytes > 0.999);
    efs_store_close(store);
    assert_int_equal(fixture_open_fds(), fds);
}

TEST(test_no_experts)
{
    const struct fixture_tensor tensors[] = {{"model.norm.weight", "BF16", 1, {4096}, 8192}};
    struct fixture dense;
    struct efs_store *store;
    struct efs_profile profile;
    struct efs_error err = {""};
    fixture_begin(&dense);
    fixture_safetensors(&dense, "model.safetensors", tensors, 1, 1);
    fixture_pack(&dense, NULL);
    assert_int_equal(efs_store_open(dense.store, &store, &err), 0);
    assert_int_equal(efs_profile_measure(store, 1, 0.1, &profile, &err), -ENOENT);
    assert_non_null(strstr(err.text, "no experts"));
    efs_store_close(store);
    fixture_end(&dense);
}

static bool near(double a, double b)
{
    return a - b <= 1e-9 * b && b - a <= 1e-9 * b;
}

TEST(test_save_and_load)
{
    char directory[400], path[500];
    struct efs_profile loaded;
    struct efs_error err = {""};
    snprintf(directory, sizeof(directory), "%s/state/of/it", model.directory);
    setenv("EXPERTFS_STATE", directory, 1);
    assert_int_equal(efs_profile_path(measured.content_hash, path, sizeof(path), &err), 0);
    assert_int_equal(efs_profile_load(path, &loaded, &err), -ENOENT);
    for (int twice = 0; twice < 2; twice++) {
        measured.rho += 0.125;
        assert_int_equal(efs_profile_save(&measured, &err), 0);
        assert_int_equal(fixture_entry_count(directory), 3);
        assert_int_equal(efs_profile_load(path, &loaded, &err), 0);
        assert_true(loaded.content_hash == measured.content_hash && loaded.measured_at == measured.measured_at &&
                    loaded.direct_io == measured.direct_io);
        assert_string_equal(loaded.cpu_path, measured.cpu_path);
#define SAME(name, help) assert_true(near(loaded.name, measured.name));
        EFS_PROFILE_NUMBERS(SAME)
#undef SAME
    }
    /* a path where no directory can be created */
    snprintf(directory, sizeof(directory), "%s/below", model.store);
    setenv("EXPERTFS_STATE", directory, 1);
    assert_int_equal(efs_profile_save(&measured, &err), -ENOTDIR);
    assert_non_null(strstr(err.text, directory));
}

TEST(test_steady)
{
    struct efs_profile profile = {.disk_spread = 0.25, .decode_spread = 0.25};
    assert_true(efs_profile_is_steady(&profile));
    profile.disk_spread = 0.26;
    assert_false(efs_profile_is_steady(&profile));
    profile = (struct efs_profile){.decode_spread = 0.26};
    assert_false(efs_profile_is_steady(&profile));
}

TEST(test_place)
{
    char path[500];
    struct efs_error err = {""};
    setenv("EXPERTFS_STATE", "/a", 1);
    assert_int_equal(efs_profile_path(0xabc, path, sizeof(path), &err), 0);
    assert_string_equal(path, "/a/profile-0000000000000abc.json");
    assert_int_equal(efs_profile_path(0xabc, path, 10, &err), -ENAMETOOLONG);
    unsetenv("EXPERTFS_STATE");
    setenv("XDG_STATE_HOME", "/x", 1);
    assert_int_equal(efs_profile_path(1, path, sizeof(path), &err), 0);
    assert_string_equal(path, geteuid() == 0 ? "/var/lib/expertfs/profile-0000000000000001.json"
                                             : "/x/expertfs/profile-0000000000000001.json");
    setenv("XDG_STATE_HOME", "x", 1); /* by its specification a relative one is ignored */
    setenv("HOME", "/h", 1);
    assert_int_equal(efs_profile_path(1, path, sizeof(path), &err), 0);
    assert_string_equal(path, geteuid() == 0 ? "/var/lib/expertfs/profile-0000000000000001.json"
                                             : "/h/.local/state/expertfs/profile-0000000000000001.json");
}

/* Loads the text of a good profile with `from` replaced by `to`. */
static errint_t load_changed(const char *from, const char *to)
{
    char path[400], *text = efs_profile_json(&measured), *at;
    struct efs_profile loaded;
    struct efs_error err = {""};
    assert_non_null(text);
    at = strstr(text, from);
    assert_non_null(at);
    size_t room = strlen(text) + strlen(to) + 1;
    char *changed = malloc(room);
    assert_non_null(changed);
    snprintf(changed, room, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fixture_file(&model, "p.json", changed, strlen(changed));
    snprintf(path, sizeof(path), "%s/p.json", model.source);
    errint_t rc = efs_profile_load(path, &loaded, &err);
    assert_true(rc == 0 || strstr(err.text, path));
    free(changed);
    free(text);
    return rc;
}

TEST(test_refused)
{
    assert_int_equal(load_changed("}", "}"), 0);
    static const struct {
        const char *from, *to;
    } bad[] = {{"}", ""},
               {"{", "[{"},
               {"\"rho\": ", "\"rho\": -"},
               {"\"rho\": ", "\"rho\": 1e300, \"other\": "},
               {"\"rho\": ", "\"rho\": \"0.3\", \"other\": "},
               {"\"rho\": ", "\"rho\": 17, \"other\": "},
               {"\"rho\": ", "\"rho\": NaN, \"other\": "},
               {"\"rho\": ", "\"rho\": 0.3, \"rho\": "},
               {"\"disk_bytes_per_second\": ", "\"disk_bytes_per_second\": 0, \"other\": "},
               {"\"decode_bytes_per_second\": ", "\"decode_bytes_per_second\": 0.5, \"other\": "},
               {"\"tensors\": ", "\"tensors\": 0, \"other\": "},
               {"\"layers\": ", "\"layers\": 1000000, \"other\": "},
               {"\"content_hash\": \"", "\"content_hash\": \"xyz"},
               {"\"content_hash\": \"", "\"content_hash\": \"fffffffff"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(load_changed(bad[i].from, bad[i].to), -EUCLEAN);
    /* numbers that another version wrote, or did not */
    assert_int_equal(load_changed("\"disk_spread\"", "\"disk_noise\""), -ESTALE);
    assert_int_equal(load_changed("\"rho\": ", "\"rho_squared\": 1, \"rho\": "), 0);
}

TEST_MAIN(setup, fixture_teardown)
