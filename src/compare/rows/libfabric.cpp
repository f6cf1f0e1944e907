// SPDX-License-Identifier: Apache-2.0
//
// libfabric's provider for shared memory, shm: reliable datagrams, with a completion queue for each
// direction that is read without a pause, as its programs do.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <sys/mman.h>

#include <cerrno>
#include <memory>
#include <stdexcept>
#include <string>

#include "compare/rows/module.hpp"

namespace farcall::compare {
namespace {

void check(std::int64_t result, const char* what) {
  if (result < 0)
    throw std::runtime_error(std::string(what) + ": " + fi_strerror(static_cast<int>(-result)));
}

struct Close {
  template <class Object>
  void operator()(Object* object) const noexcept {
    fi_close(&object->fid);
  }
};
template <class Object>
using Owned = std::unique_ptr<Object, Close>;

struct FreeInfo {
  void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

Info find_provider() {
  const Info hints(fi_allocinfo());
  if (!hints) throw std::bad_alloc();
  hints->caps = FI_MSG;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->fabric_attr->prov_name = ::strdup("shm");  // freed with the rest
  fi_info* found = nullptr;
  check(fi_getinfo(FI_VERSION(1, 9), nullptr, nullptr, 0, hints.get(), &found), "fi_getinfo");
  return Info(found);
}

class FabricEnd final : public Endpoint {
 public:
  explicit FabricEnd(const Introduction& introduction) : info_(find_provider()) {
    fid_fabric* fabric = nullptr;
    check(fi_fabric(info_->fabric_attr, &fabric, nullptr), "fi_fabric");
    fabric_.reset(fabric);
    fid_domain* domain = nullptr;
    check(fi_domain(fabric, info_.get(), &domain, nullptr), "fi_domain");
    domain_.reset(domain);
    fi_av_attr addresses{};
    addresses.type = FI_AV_TABLE;
    fid_av* book = nullptr;
    check(fi_av_open(domain, &addresses, &book, nullptr), "fi_av_open");
    book_.reset(book);
    sent_ = open_queue();
    received_ = open_queue();
    open_endpoint();
    meet(introduction);
  }

  void send(std::span<const std::byte> message) override {
    post("fi_send", sent_, [&] {
      return fi_send(end_.get(), message.data(), message.size(), nullptr, peer_, nullptr);
    });
    await(sent_);
  }
  void receive(std::span<std::byte> message) override {
    post("fi_recv", received_, [&] {
      return fi_recv(end_.get(), message.data(), message.size(), nullptr, peer_, nullptr);
    });
    if (await(received_) != message.size())
      throw SystemError(EPROTO, "fi_recv: a message of another size");
  }

 private:
  Owned<fid_cq> open_queue() {
    fi_cq_attr attributes{};
    attributes.format = FI_CQ_FORMAT_MSG;
    attributes.wait_obj = FI_WAIT_NONE;
    fid_cq* queue = nullptr;
    check(fi_cq_open(domain_.get(), &attributes, &queue, nullptr), "fi_cq_open");
    return Owned<fid_cq>(queue);
  }
  void open_endpoint() {
    fid_ep* end = nullptr;
    check(fi_endpoint(domain_.get(), info_.get(), &end, nullptr), "fi_endpoint");
    end_.reset(end);
    check(fi_ep_bind(end, &book_->fid, 0), "fi_ep_bind");
    check(fi_ep_bind(end, &sent_->fid, FI_TRANSMIT), "fi_ep_bind");
    check(fi_ep_bind(end, &received_->fid, FI_RECV), "fi_ep_bind");
    check(fi_enable(end), "fi_enable");
  }
  // Each side tells the other its address. When both have mapped the memory of both, its name goes,
  // so that none is left when a process is killed.
  void meet(const Introduction& introduction) {
    std::vector<std::byte> own(kMostAddress);
    std::size_t bytes = own.size();
    check(fi_getname(&end_->fid, own.data(), &bytes), "fi_getname");
    own.resize(bytes);
    introduction.send(own);
    const std::vector<std::byte> theirs = introduction.receive();
    if (fi_av_insert(book_.get(), theirs.data(), 1, &peer_, 0, nullptr) != 1)
      throw SystemError(EADDRNOTAVAIL, "fi_av_insert");
    introduction.meet();
    std::byte hello{};
    send({&hello, 1});
    receive({&hello, 1});
    introduction.meet();
    const std::string name(reinterpret_cast<const char*>(own.data()));
    constexpr std::string_view kScheme = "fi_shm://";
    ::shm_unlink(("/" + name.substr(name.starts_with(kScheme) ? kScheme.size() : 0)).c_str());
  }
  // Until there is room. Reading the queue is what makes progress.
  template <class Function>
  void post(const char* what, const Owned<fid_cq>& queue, Function function) {
    std::int64_t result = 0;
    while ((result = function()) == -FI_EAGAIN) fi_cq_read(queue.get(), nullptr, 0);
    check(result, what);
  }
  // Returns the length of what has been sent or has come.
  static std::size_t await(const Owned<fid_cq>& queue) {
    fi_cq_msg_entry entry{};
    ssize_t count = 0;
    do count = fi_cq_read(queue.get(), &entry, 1);
    while (count == -FI_EAGAIN);
    check(count, "fi_cq_read");
    return entry.len;
  }

  static constexpr std::size_t kMostAddress = 512;
  Info info_;
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  Owned<fid_av> book_;
  Owned<fid_cq> sent_;
  Owned<fid_cq> received_;
  Owned<fid_ep> end_;  // the first to go
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
};

class FabricConnection final : public Connection {
 public:
  std::unique_ptr<Endpoint> open(Role role) override {
    introduction_.take(role);
    return std::make_unique<FabricEnd>(introduction_);
  }

 private:
  Introduction introduction_;
};

}  // namespace
}  // namespace farcall::compare

extern "C" farcall::compare::Connection* farcall_peer_connection(
    const farcall::compare::Conditions&, const farcall::compare::RowInfo&) {
  return new farcall::compare::FabricConnection;
}
