/* SPDX-License-Identifier: Apache-2.0 */
/* choose.h - which experts of a mixture are computed by which peer, by measured times. Pure. */
#ifndef EFS_CHOOSE_H
#define EFS_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

#define EFS_PEERS_MAX 16u
#define EFS_CHOOSE_HERE (-1)

/* Moving averages over a peer's requests: seconds from sending to the answer, vectors, products of these. */
struct efs_choose_peer {
    bool ready;
    double seconds, vectors, seconds_vectors, vectors_vectors; /* seconds 0: not measured */
    double most; /* vectors of a request; an average, too, of the requests since */
};
/* Adds a request of `vectors` vectors. */
void efs_choose_measured(struct efs_choose_peer *peer, double seconds, double vectors);
/* Moves an average, 0 if nothing was measured, towards a measurement. */
void efs_choose_average(double *average, double measured);

/* An expert that is not in this machine's memory. */
struct efs_choose_expert {
    uint32_t vectors; /* tokens that are routed to it */
    uint32_t holders; /* bit of each peer whose memory has it */
    int peer;         /* result; EFS_CHOOSE_HERE: it is read */
};

/* Seconds after which a peer answers a request of this number of vectors; 0: not known. More vectors than a request had
 * are taken to cost as much each. */
double efs_choose_seconds(const struct efs_choose_peer *peer, uint32_t vectors);
/* Seconds after which the caller leaves a peer that has not answered, and reads its experts itself: it loses the
 * expected time, 0 if that is not known, and as much again as the reading takes. */
double efs_choose_patience(double expected, double read_s, uint32_t experts);
/*
 * Chooses so that the last of all, the reads here one after the other and each peer's answer, ends soonest. read_s:
 * seconds of reading an expert, 0: not known, so that all are read, which measures it. A ready peer that is not
 * measured gets one expert, the only one of this mixture. Returns the number of experts that peers compute.
 */
uint32_t efs_choose(const struct efs_choose_peer *peers, uint32_t peer_count, double read_s,
                    struct efs_choose_expert *experts, uint32_t count);

#endif
