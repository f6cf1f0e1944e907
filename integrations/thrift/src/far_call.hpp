// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thrift/transport/TTransport.h>

#include <memory>

#include "farcall/message.hpp"

namespace farcall::thrift {

// A transport for one call that came through a bridge, for whoever accepts it. Null: its user has
// too many here already, and it has been answered with EAGAIN. Throws where the client has gone, or
// there is no memory.
std::shared_ptr<apache::thrift::transport::TTransport> accept_far_call(ReceivedMessage message);

}  // namespace farcall::thrift
