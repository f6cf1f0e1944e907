// SPDX-License-Identifier: Apache-2.0
//
// What an Endpoint is inside: there are no others.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "farcall/call.hpp"

namespace farcall::call {

class EndpointState final : public Endpoint, public std::enable_shared_from_this<EndpointState> {
 public:
  EndpointState(std::shared_ptr<PortState> its_port, std::weak_ptr<EndpointOwner> its_owner,
                const Terms& its_terms);
  ~EndpointState();

  class Branch;
  const std::shared_ptr<PortState> port;
  const std::weak_ptr<EndpointOwner> owner;
  std::atomic<bool> closed{false};
  std::atomic<std::uint64_t> unsolicited_control_messages{0};
  std::atomic<std::uint64_t> unsolicited_descriptors{0};
  Terms terms;           // protected by the port's lock
  observe::Label label;  // likewise
  // Not the port's, which a thread that serves may hold when a signal handler that it runs forks.
  mutable std::mutex branches_lock;
  std::vector<std::shared_ptr<Branch>> branches;  // protected by it
};

inline EndpointState& inside(Endpoint& endpoint) noexcept {
  return static_cast<EndpointState&>(endpoint);
}
inline const EndpointState& inside(const Endpoint& endpoint) noexcept {
  return static_cast<const EndpointState&>(endpoint);
}

}  // namespace farcall::call
