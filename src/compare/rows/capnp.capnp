# SPDX-License-Identifier: Apache-2.0
#
# What the row "capnp" calls.
@0xf3a2c6d1b5e94807;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("farcall::compare::schema");

interface Answerer {
  answer @0 (request :Data) -> (reply :Data);
}
