// SPDX-License-Identifier: Apache-2.0
//
// What a call through two bridges costs, beside a bare request and reply of the same size through
// the same NATS server in the same run. Both sides of the bare one are libnats as it is used for
// speed: replies by one subscription, everything sent at once.
//
//   bridge-bench [--seconds S] [--sizes 64,65536] [--clients 1,64] [--only bridge|nats]
//                [--kind door|channel]
#include <fcntl.h>
#include <fmt/format.h>
#include <nats/nats.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bridge/harness.hpp"
#include "farcall/doors.h"
#include "farcall/message.h"

namespace {

using Clock = std::chrono::steady_clock;
using farcall::test::Nats;
using farcall::test::ScratchDirectory;

// Replies with what came. In a process of its own, as the bridge's service is.
void answer(natsConnection* connection, natsSubscription*, natsMsg* message, void*) {
  natsConnection_Publish(connection, natsMsg_GetReply(message), natsMsg_GetData(message),
                         natsMsg_GetDataLength(message));
  natsMsg_Destroy(message);
}

natsConnection* connect(const std::string& url) {
  natsOptions* options = nullptr;
  natsConnection* connection = nullptr;
  natsOptions_Create(&options);
  natsOptions_SetURL(options, url.c_str());
  natsOptions_SetSendAsap(options, true);
  if (natsConnection_Connect(&connection, options) != NATS_OK) std::abort();
  natsOptions_Destroy(options);
  return connection;
}

struct Result {
  double calls_per_s;
  double p50_us;
  double p99_us;
};

// Each client calls again and again; `call` returns whether all was well.
Result measure(unsigned clients, double seconds, const std::function<bool(unsigned)>& call) {
  std::vector<std::vector<float>> times(clients);
  std::atomic<bool> stop{false};
  std::atomic<bool> failed{false};
  std::vector<std::thread> threads;
  const auto begin = Clock::now();
  for (unsigned i = 0; i < clients; ++i)
    threads.emplace_back([&, i] {
      while (!stop && !failed) {
        const auto before = Clock::now();
        if (!call(i)) failed = true;
        times[i].push_back(std::chrono::duration<float, std::micro>(Clock::now() - before).count());
      }
    });
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (failed) {
    fmt::print(stderr, "bridge-bench: a call failed\n");
    std::exit(1);
  }
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  std::vector<float> all;
  for (const auto& each : times) all.insert(all.end(), each.begin(), each.end());
  std::sort(all.begin(), all.end());
  return {static_cast<double>(all.size()) / elapsed, all[all.size() / 2],
          all[all.size() * 99 / 100]};
}

std::vector<unsigned> numbers(const std::string& text) {
  std::vector<unsigned> all;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    all.push_back(static_cast<unsigned>(std::strtoul(at, &end, 10)));
    at = *end == ',' ? end + 1 : end;
  }
  return all;
}

class Bare {
 public:
  explicit Bare(const std::string& url) : connection_(connect(url)) {}
  bool call(const std::string& request) const {
    natsMsg* reply = nullptr;
    if (natsConnection_Request(&reply, connection_, "bare", request.data(),
                               static_cast<int>(request.size()), 20000) != NATS_OK)
      return false;
    const bool same = natsMsg_GetDataLength(reply) == static_cast<int>(request.size());
    natsMsg_Destroy(reply);
    return same;
  }

 private:
  natsConnection* const connection_;
};

// One client of an imported name.
class Bridged {
 public:
  Bridged() = default;
  virtual ~Bridged() = default;
  Bridged(const Bridged&) = delete;
  Bridged& operator=(const Bridged&) = delete;
  virtual bool call(const std::string& request) = 0;
};

class ByDoor final : public Bridged {
 public:
  ByDoor(const std::string& path, std::size_t size)
      : door_(::door_open(path.c_str(), O_RDONLY | O_CLOEXEC)), room_(size) {}
  ~ByDoor() override { ::close(door_); }
  bool call(const std::string& request) override {
    door_arg_t arguments{.data_ptr = const_cast<char*>(request.data()),
                         .data_size = request.size(),
                         .desc_ptr = nullptr,
                         .desc_num = 0,
                         .rbuf = room_.data(),
                         .rsize = room_.size()};
    if (::door_call(door_, &arguments) != 0) return false;
    if (arguments.rbuf != room_.data()) ::munmap(arguments.rbuf, arguments.rsize);
    return arguments.data_size == request.size();
  }

 private:
  const int door_;
  std::vector<char> room_;
};

class ByChannel final : public Bridged {
 public:
  ByChannel(const std::string& name, std::size_t size)
      : connection_(::farcall_name_open(name.c_str())), room_(size) {}
  ~ByChannel() override { ::farcall_disconnect(connection_); }
  bool call(const std::string& request) override {
    return ::farcall_send(connection_, request.data(), request.size(), room_.data(),
                          room_.size()) >= 0;
  }

 private:
  const int connection_;
  std::vector<char> room_;
};

using MakeClient = std::function<std::unique_ptr<Bridged>(unsigned size)>;

void compare(const Bare& bare, const MakeClient& make_client, unsigned size, unsigned clients,
             double seconds, const std::string& only) {
  const std::string request(size, 'x');
  std::vector<std::unique_ptr<Bridged>> bridged;
  for (unsigned i = 0; i < clients; ++i) bridged.push_back(make_client(size));
  // In turns, so that both meet the same disturbances.
  Result by_nats{};
  Result by_bridge{};
  constexpr int kTurns = 16;  // short ones: the machine's moods last for seconds
  std::vector<double> time_ratios;
  std::vector<double> rate_ratios;
  for (int turn = 0; turn < kTurns; ++turn) {
    if (only != "bridge")
      by_nats = measure(clients, seconds / kTurns, [&](unsigned) { return bare.call(request); });
    if (only != "nats")
      by_bridge =
          measure(clients, seconds / kTurns, [&](unsigned i) { return bridged[i]->call(request); });
    time_ratios.push_back(by_bridge.p50_us / by_nats.p50_us);
    rate_ratios.push_back(by_bridge.calls_per_s / by_nats.calls_per_s);
    fmt::print(
        "{:6} B {:3} clients  nats {:8.1f} us p50 {:8.1f} p99 {:8.0f}/s   bridge {:8.1f} us "
        "p50 {:8.1f} p99 {:8.0f}/s\n",
        size, clients, by_nats.p50_us, by_nats.p99_us, by_nats.calls_per_s, by_bridge.p50_us,
        by_bridge.p99_us, by_bridge.calls_per_s);
  }
  if (!only.empty()) return;
  std::sort(time_ratios.begin(), time_ratios.end());
  std::sort(rate_ratios.begin(), rate_ratios.end());
  fmt::print(
      "{:6} B {:3} clients: time x {:.2f} ({:.2f} to {:.2f}), calls/s x {:.2f} ({:.2f} to "
      "{:.2f})\n",
      size, clients, time_ratios[kTurns / 2], time_ratios.front(), time_ratios.back(),
      rate_ratios[kTurns / 2], rate_ratios.front(), rate_ratios.back());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--respond") {
    natsSubscription* subscription = nullptr;
    natsConnection_Subscribe(&subscription, connect(argv[2]), "bare", &answer, nullptr);
    for (;;) ::pause();
  }
  double seconds = 8;
  std::string sizes = "64,65536";
  std::string clients = "1,64";
  std::string only;
  std::string kind = "door";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--seconds") seconds = std::atof(argv[i + 1]);
    if (option == "--sizes") sizes = argv[i + 1];
    if (option == "--clients") clients = argv[i + 1];
    if (option == "--only") only = argv[i + 1];
    if (option == "--kind") kind = argv[i + 1];
  }
  if (const std::string reason = farcall::test::no_nats(); !reason.empty()) {
    fmt::print("bridge-bench: {}\n", reason);
    return 0;
  }
  const ScratchDirectory scratch;
  const Nats nats(scratch);
  const bool door = kind == "door";
  const std::string tag = fmt::format("bench-bridge-{}", ::getpid());
  const std::string there = door ? scratch.file("door") : tag;
  const std::string here = door ? scratch.file("rdoor") : "r" + tag;
  const farcall::test::Service service(scratch.file("door"), door ? "" : there);
  const farcall::test::Program responder({"/proc/self/exe", "--respond", nats.url()},
                                         scratch.file("responder.log"));
  const auto exporter = farcall::test::start_bridge(
      scratch, tag + "-exporter", {"--nats", nats.url(), "--export", kind + ":" + there + "=echo"});
  const auto importer = farcall::test::start_bridge(
      scratch, tag + "-importer", {"--nats", nats.url(), "--import", "echo=" + kind + ":" + here});
  const auto make_client = [&](unsigned size) -> std::unique_ptr<Bridged> {
    if (door) return std::make_unique<ByDoor>(here, size);
    return std::make_unique<ByChannel>(here, size);
  };
  const Bare bare(nats.url());
  farcall::test::comes_true([&] { return bare.call("x"); });
  for (const unsigned count : numbers(clients))
    for (const unsigned size : numbers(sizes))
      compare(bare, make_client, size, count, seconds, only);
  return 0;
}
