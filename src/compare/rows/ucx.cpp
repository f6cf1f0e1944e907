// SPDX-License-Identifier: Apache-2.0
//
// UCX with its transports over shared memory: messages with a tag, matched by it. Who waits either
// calls ucp_worker_progress() without a pause, as UCX is made for, or sleeps in ucp_worker_wait()
// when that has found nothing to do.
#include <ucp/api/ucp.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "compare/rows/module.hpp"

namespace farcall::compare {
namespace {

constexpr ucp_tag_t kTag = 1;

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK)
    throw std::runtime_error(std::string(what) + ": " + ucs_status_string(status));
}

// Owners of what UCX makes, in the order in which it has to go.
class Worker {
 public:
  explicit Worker(bool blocks) : blocks_(blocks) {
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    // All that it has over shared memory, and nothing of the network.
    const ucs_status_t modified = ucp_config_modify(config, "TLS", "shm,self");
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_TAG | (blocks ? std::uint64_t{UCP_FEATURE_WAKEUP} : 0);
    const ucs_status_t made = ucp_init(&parameters, config, &context_);
    ucp_config_release(config);
    check(modified, "ucp_config_modify");
    check(made, "ucp_init");
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    const ucs_status_t status = ucp_worker_create(context_, &worker, &worker_);
    if (status != UCS_OK) ucp_cleanup(context_);
    check(status, "ucp_worker_create");
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    if (peer_ != nullptr) close_peer();
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  // Each side tells the other its address.
  void connect(const Introduction& introduction) {
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    check(ucp_worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address");
    const std::vector<std::byte> own(reinterpret_cast<const std::byte*>(address),
                                     reinterpret_cast<const std::byte*>(address) + bytes);
    ucp_worker_release_address(worker_, address);
    introduction.send(own);
    const std::vector<std::byte> theirs = introduction.receive();
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    parameters.address = reinterpret_cast<const ucp_address_t*>(theirs.data());
    check(ucp_ep_create(worker_, &parameters, &peer_), "ucp_ep_create");
  }
  void send(std::span<const std::byte> message) {
    constexpr ucp_request_param_t kPlain{};
    wait_for(ucp_tag_send_nbx(peer_, message.data(), message.size(), kTag, &kPlain),
             "ucp_tag_send_nbx");
  }
  void receive(std::span<std::byte> message) {
    // One that is longer is an error; a shorter one shows in what it should carry.
    constexpr ucp_request_param_t kPlain{};
    wait_for(
        ucp_tag_recv_nbx(worker_, message.data(), message.size(), kTag, ~ucp_tag_t{0}, &kPlain),
        "ucp_tag_recv_nbx");
  }

 private:
  // Returns when what was asked for is done.
  void wait_for(ucs_status_ptr_t request, const char* what) {
    if (!UCS_PTR_IS_PTR(request)) return check(UCS_PTR_RAW_STATUS(request), what);
    ucs_status_t status = UCS_INPROGRESS;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) progress();
    ucp_request_free(request);
    check(status, what);
  }
  void progress() {
    if (ucp_worker_progress(worker_) != 0 || !blocks_) return;
    check(ucp_worker_wait(worker_), "ucp_worker_wait");
  }
  // Without awaiting the other side, which may have gone.
  void close_peer() {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* const request = ucp_ep_close_nbx(peer_, &parameters);
    if (!UCS_PTR_IS_PTR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker_);
    ucp_request_free(request);
  }

  bool blocks_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h peer_ = nullptr;
};

class UcxEnd final : public Endpoint {
 public:
  UcxEnd(const Introduction& introduction, bool blocks) : worker_(blocks) {
    worker_.connect(introduction);
    introduction.meet();
  }
  void send(std::span<const std::byte> message) override { worker_.send(message); }
  void receive(std::span<std::byte> message) override { worker_.receive(message); }

 private:
  Worker worker_;
};

// A context does not survive a fork, so each process makes its own.
class UcxConnection final : public Connection {
 public:
  explicit UcxConnection(bool blocks) : blocks_(blocks) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    introduction_.take(role);
    return std::make_unique<UcxEnd>(introduction_, blocks_);
  }

 private:
  bool blocks_;
  Introduction introduction_;
};

}  // namespace
}  // namespace farcall::compare

extern "C" farcall::compare::Connection* farcall_peer_connection(
    const farcall::compare::Conditions&, const farcall::compare::RowInfo& row) {
  return new farcall::compare::UcxConnection(row.wait == "block");
}
