/* SPDX-License-Identifier: Apache-2.0 */
/* choose.c - see choose.h. */
#include "choose.h"

#define WEIGHT 0.125           /* of a new measurement in a moving average */
#define MOST_WEIGHT (1.0 / 64) /* of a request with fewer vectors, in the most that is known */

void efs_choose_average(double *average, double measured)
{
    *average = *average > 0 ? *average + WEIGHT * (measured - *average) : measured;
}

void efs_choose_measured(struct efs_choose_peer *peer, double seconds, double vectors)
{
    efs_choose_average(&peer->seconds, seconds);
    efs_choose_average(&peer->vectors, vectors);
    efs_choose_average(&peer->seconds_vectors, seconds * vectors);
    efs_choose_average(&peer->vectors_vectors, vectors * vectors);
    if (vectors > peer->most)
        peer->most = vectors;
    peer->most += MOST_WEIGHT * (vectors - peer->most);
}

/* A line through the measurements, from which nothing is known about requests that are larger than all of these. */
double efs_choose_seconds(const struct efs_choose_peer *peer, uint32_t vectors)
{
    const double spread = peer->vectors_vectors - peer->vectors * peer->vectors;
    double slope = peer->seconds_vectors - peer->seconds * peer->vectors;
    slope = spread > 0.01 * peer->vectors_vectors && slope > 0 ? slope / spread : 0;
    const double known = vectors < peer->most ? vectors : peer->most, more = slope * (known - peer->vectors);
    const double seconds = peer->seconds + (more > 0 ? more : more / 2); /* fewer vectors still have the latency */
    return vectors > peer->most && peer->most > 0 ? seconds * vectors / peer->most : seconds;
}

double efs_choose_patience(double expected, double read_s, uint32_t experts)
{
    return expected + read_s * experts;
}

/* The first peer without a measurement gets one expert. */
static bool probe(const struct efs_choose_peer *peers, uint32_t peer_count, struct efs_choose_expert *experts,
                  uint32_t count)
{
    for (uint32_t p = 0; p < peer_count; p++)
        for (uint32_t e = 0; e < count && peers[p].ready && peers[p].seconds <= 0; e++)
            if (experts[e].holders >> p & 1) {
                experts[e].peer = (int)p;
                return true;
            }
    return false;
}

uint32_t efs_choose(const struct efs_choose_peer *peers, uint32_t peer_count, double read_s,
                    struct efs_choose_expert *experts, uint32_t count)
{
    uint32_t vectors[EFS_PEERS_MAX] = {0}, here = count;
    for (uint32_t e = 0; e < count; e++)
        experts[e].peer = EFS_CHOOSE_HERE;
    if (read_s <= 0)
        return 0;
    if (probe(peers, peer_count, experts, count))
        return 1;
    for (uint32_t e = 0; e < count; e++) { /* move this expert if all then end sooner */
        int best = EFS_CHOOSE_HERE;
        double best_s = here * read_s;
        for (uint32_t p = 0; p < peer_count; p++) {
            if (!peers[p].ready || peers[p].seconds <= 0 || !(experts[e].holders >> p & 1))
                continue;
            const double s = efs_choose_seconds(&peers[p], vectors[p] + experts[e].vectors);
            if (s < best_s) {
                best = (int)p;
                best_s = s;
            }
        }
        if (best == EFS_CHOOSE_HERE)
            continue;
        experts[e].peer = best;
        vectors[best] += experts[e].vectors;
        here--;
    }
    return count - here;
}
