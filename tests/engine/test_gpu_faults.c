/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A graphics processor with which things go wrong: damage on the way, and each call of the driver that fails once, or
 * from then on, as of a lost device.
 */

#include "test.h"
#include "driver.h"
#include "gpu_fixture.h"

TEST_WITH(damaged_on_the_way, NULL, gpu_after)
{
    struct efs_client_request *request;
    uint32_t index, bad = 0;
    errint_t status;
    struct efs_client *client = gpu_client(gpu_model.store, GPU_LEAST);
    gpu_fake.damage(1);
    assert_int_equal(gpu_begin(client, 0, 0, 3, &request), 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(efs_client_wait_any(request, 60000, &index, &status), 1);
        assert_true(status == 0 || status == -EUCLEAN);
        bad += status < 0;
        if (status == 0)
            gpu_check(request, index, 0, index);
    }
    assert_int_equal(bad, 1);
    efs_client_release(request);
    gpu_bring(client, 0, 0, 3);
    efs_client_close(client);
}

/* A client's life, in which some call of the driver fails. Returns whether one did. */
static bool life(const char *path)
{
    struct efs_error err = {""};
    struct efs_client *client = gpu_client_without(path, true);
    bool failed = false;
    errint_t rc = gpu_add(client, GPU_LEAST, &err);
    if (rc < 0) {
        assert_true(rc == -EIO || rc == -ENOMEM || rc == -ENODEV);
        assert_non_null(strstr(err.text, "cu"));
        failed = true;
    }
    for (uint32_t layer = 0; layer < GPU_LAYERS && !failed; layer++) {
        struct efs_client_request *request;
        uint32_t index;
        errint_t status;
        rc = gpu_begin(client, layer, 0, GPU_EXPERTS - 2, &request);
        if (rc < 0) {
            assert_int_equal(rc, -EIO);
            failed = true;
            break;
        }
        while (efs_client_wait_any(request, 60000, &index, &status) == 1) {
            assert_true(status == 0 || status == -EIO || status == -ENOMEM);
            failed |= status < 0;
            if (status == 0)
                gpu_check(request, index, layer, index);
            if (status == 0 && efs_client_drop_after(request, index, NULL) < 0)
                failed = true;
        }
        efs_client_release(request);
    }
    efs_client_close(client);
    assert_int_equal(gpu_fake.left(), 0);
    return failed;
}

TEST_WITH(each_call_fails, NULL, gpu_after)
{
    static const struct {
        int result;
        bool for_ever;
    } ways[] = {{EFS_CU_OUT_OF_MEMORY, false}, {700, true}};
    for (unsigned w = 0; w < 2; w++) {
        unsigned failed = 0, fine = 0;
        for (unsigned number = 1; fine < 3 && number < 1000; number++) {
            gpu_fake.fails(number, ways[w].result, ways[w].for_ever);
            if (life(gpu_model.store))
                failed++, fine = 0;
            else
                fine++; /* a call of the end, or of none any more */
            if (failed > 40)
                number += 6; /* the same calls again and again */
        }
        gpu_fake.fails(0, 0, false);
        assert_true(failed > 30);
        assert_false(life(gpu_model.store));
    }
}

TEST_MAIN(gpu_setup, gpu_teardown)
