// SPDX-License-Identifier: Apache-2.0
//
// What farcall compare does not ask of doors: many clients at once, many sessions that idle, one
// large request, a call after a long silence. Each is measured beside a peer or a control, in
// turns.
#include <door.h>
#include <fmt/core.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "farcall/call.hpp"
#include "farcall/error.hpp"

namespace {

using namespace farcall;
using namespace std::chrono_literals;

constexpr std::size_t kBytes = 64;
constexpr int kRounds = 5;

void must(bool good, const char* what) {
  if (!good) throw_errno(what);
}

void pin(std::optional<int> processor) {
  if (!processor) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(*processor), &set);
  must(::sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

// A process that serves until this object goes; `body` gets a socket to its parent.
class ServerProcess {
 public:
  template <class Body>
  explicit ServerProcess(std::optional<int> processor, Body body) {
    auto [here, there] = socket_pair();
    process_ = ::fork();
    must(process_ >= 0, "fork");
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      pin(processor);
      body(there.get());
      for (;;) ::pause();
    }
    socket_ = std::move(here);
  }
  ~ServerProcess() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  UniqueFd receive() const {
    auto message = receive_fd_message(socket_.get(), Deadline::after(10s));
    if (!message || message->descriptors.empty()) throw SystemError(EPROTO, "nothing came");
    return std::move(message->descriptors.front());
  }
  [[nodiscard]] pid_t process() const { return process_; }

 private:
  pid_t process_ = -1;
  UniqueFd socket_;
};

void hand_over(int socket, int fd) {
  FdMessage message;
  message.descriptors.emplace_back(::dup(fd));
  send_fd_message(socket, message);
}

void answer_same(void*, char* data, size_t size, door_desc_t*, uint_t) {
  ::door_return(data, size, nullptr, 0);
}
void answer_nothing(void*, char*, size_t, door_desc_t*, uint_t) {
  ::door_return(nullptr, 0, nullptr, 0);
}

ServerProcess door_server(door_server_procedure_t* procedure, std::optional<int> processor = {}) {
  return ServerProcess(processor, [procedure](int socket) {
    const int door = ::door_create(procedure, nullptr, 0);
    must(door >= 0, "door_create");
    hand_over(socket, door);
  });
}

void call(int door, std::span<char> request, std::span<char> reply) {
  door_arg_t arguments{.data_ptr = request.data(),
                       .data_size = request.size(),
                       .desc_ptr = nullptr,
                       .desc_num = 0,
                       .rbuf = reply.data(),
                       .rsize = reply.size()};
  must(::door_call(door, &arguments) == 0, "door_call");
}

double at(std::vector<double>& sorted, double share) {
  const auto index = static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1));
  return sorted[index];
}
double median(std::vector<double> values) {
  std::ranges::sort(values);
  return at(values, 0.5);
}
std::string spread(const std::vector<double>& values) {
  const auto [least, most] = std::ranges::minmax(values);
  return fmt::format("{:.2f} ({:.2f} to {:.2f})", median(values), least, most);
}

// What one call or copy costs, in microseconds: the median of many.
template <class Body>
double usual_us(int count, Body body) {
  std::vector<double> samples;
  for (int i = 0; i < count; ++i) {
    const std::int64_t before = monotonic_ns();
    body();
    samples.push_back(static_cast<double>(monotonic_ns() - before) / 1e3);
  }
  return median(std::move(samples));
}

struct Load {
  double calls_per_s;
  double p50_us;
  double p99_us;
};

// As many threads as there are clients call for a second.
Load under_load(std::size_t clients, const std::function<void(std::size_t)>& one_call) {
  std::atomic<bool> over{false};
  std::vector<std::vector<double>> samples(clients);
  std::vector<std::thread> threads;
  const std::int64_t start = monotonic_ns();
  for (std::size_t i = 0; i < clients; ++i) {
    threads.emplace_back([&, i] {
      while (!over.load(std::memory_order_relaxed)) {
        const std::int64_t before = monotonic_ns();
        one_call(i);
        samples[i].push_back(static_cast<double>(monotonic_ns() - before) / 1e3);
      }
    });
  }
  std::this_thread::sleep_for(1s);
  over = true;
  for (std::thread& thread : threads) thread.join();
  const double seconds = static_cast<double>(monotonic_ns() - start) / 1e9;
  std::vector<double> all;
  for (const auto& some : samples) all.insert(all.end(), some.begin(), some.end());
  std::ranges::sort(all);
  return {.calls_per_s = static_cast<double>(all.size()) / seconds,
          .p50_us = at(all, 0.5),
          .p99_us = at(all, 0.99)};
}

Load doors_under_load(std::size_t clients) {
  const ServerProcess server = door_server(answer_same);
  const UniqueFd door = server.receive();
  return under_load(clients, [&](std::size_t) {
    std::array<char, kBytes> message{};
    call(door.get(), message, message);
  });
}

Load sockets_under_load(std::size_t clients) {
  std::vector<std::pair<UniqueFd, UniqueFd>> pairs;
  for (std::size_t i = 0; i < clients; ++i) pairs.push_back(socket_pair());
  const ServerProcess server({}, [&](int) {
    for (auto& pair : pairs)
      std::thread([fd = pair.second.get()] {
        std::array<char, kBytes> message{};
        while (::recv(fd, message.data(), kBytes, MSG_WAITALL) == kBytes)
          if (::send(fd, message.data(), kBytes, MSG_NOSIGNAL) != kBytes) return;
      }).detach();
  });
  return under_load(clients, [&](std::size_t i) {
    std::array<char, kBytes> message{};
    const int fd = pairs[i].first.get();
    must(::send(fd, message.data(), kBytes, MSG_NOSIGNAL) == kBytes, "send");
    must(::recv(fd, message.data(), kBytes, MSG_WAITALL) == kBytes, "recv");
  });
}

void measure_threads() {
  constexpr std::size_t kClients = 32;
  std::vector<double> throughput;
  std::vector<double> p99;
  fmt::print("{} client threads, {} B, one door; Unix stream sockets with a thread each\n",
             kClients, kBytes);
  for (int round = 0; round < kRounds; ++round) {
    const Load door = doors_under_load(kClients);
    const Load unix_stream = sockets_under_load(kClients);
    throughput.push_back(door.calls_per_s / unix_stream.calls_per_s);
    p99.push_back(door.p99_us / unix_stream.p99_us);
    fmt::print(
        "  doors {:.0f} calls/s, p50 {:.1f} us, p99 {:.0f} us; sockets {:.0f} calls/s, "
        "p50 {:.1f} us, p99 {:.0f} us\n",
        door.calls_per_s, door.p50_us, door.p99_us, unix_stream.calls_per_s, unix_stream.p50_us,
        unix_stream.p99_us);
  }
  fmt::print("  throughput x {}, p99 x {}\n", spread(throughput), spread(p99));
}

void measure_request() {
  fmt::print("a request without a reply, against one memcpy of it\n");
  for (const auto& [name, processor] :
       {std::pair("two processors", 1), std::pair("one processor", 0)}) {
    for (const std::size_t size :
         {std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20}) {
      const ServerProcess server = door_server(answer_nothing, processor);
      const UniqueFd door = server.receive();
      std::vector<char> data(size, 'x');
      std::vector<char> copy(size);
      std::vector<double> ratios;
      double call_us = 0;
      double copy_us = 0;
      // In a process of its own, so that this one stays free.
      const int count = size > (std::size_t{4} << 20) ? 20 : 200;
      cpu_set_t before;
      ::sched_getaffinity(0, sizeof before, &before);
      pin(0);
      for (int round = 0; round < kRounds; ++round) {
        call_us = usual_us(count, [&] { call(door.get(), data, {}); });
        copy_us = usual_us(count, [&] {
          std::memcpy(copy.data(), data.data(), size);
          asm volatile("" ::"r"(copy.data()) : "memory");
        });
        ratios.push_back(call_us / copy_us);
      }
      ::sched_setaffinity(0, sizeof before, &before);
      fmt::print("  {:>14} {:>6} KiB: {:8.1f} us, memcpy {:8.1f} us, x {}\n", name, size >> 10,
                 call_us, copy_us, spread(ratios));
    }
  }
}

// The value of a line such as "Slab:  123 kB" in bytes.
double kilobytes(const std::string& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    if (word != key) continue;
    double value = 0;
    in >> value;
    return value * 1024;
  }
  return 0;
}

double processor_seconds(pid_t process) {
  std::ifstream in("/proc/" + std::to_string(process) + "/stat");
  std::string word;
  for (int i = 0; i < 13; ++i) in >> word;
  double user = 0;
  double system = 0;
  in >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

void measure_sessions() {
  rlimit descriptors{};
  ::getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &descriptors);
  // Two descriptors each.
  const std::size_t count =
      std::min<std::size_t>(10'000, static_cast<std::size_t>(descriptors.rlim_cur) * 3 / 8);
  const ServerProcess server({}, [](int socket) {
    Port port;
    hand_over(socket, port.descriptor());
    ServerThread thread(port);
    Incoming incoming;
    for (;;)
      if (thread.receive(incoming, Deadline::never()) == Outcome::ok)
        thread.reply(incoming, incoming.data());
  });
  const UniqueFd port = server.receive();
  const auto ask = [&](Client& client) {
    std::array<std::byte, kBytes> message{};
    CallResults results;
    results.buffer = message;
    const Outcome outcome = client.call({.data = message, .descriptors = {}, .port = port.get()},
                                        results, Deadline::after(10s));
    if (outcome != Outcome::ok) throw SystemError(to_errno(outcome), "call");
  };
  Client hot(-1);
  const auto hot_us = [&] { return usual_us(50'000, [&] { ask(hot); }); };
  const double before_us = hot_us();
  const auto used = [&] {
    const std::string status = "/proc/" + std::to_string(server.process()) + "/status";
    return kilobytes("/proc/meminfo", "Slab:") + kilobytes("/proc/meminfo", "Shmem:") +
           kilobytes("/proc/meminfo", "PageTables:") + kilobytes("/proc/self/status", "RssAnon:") +
           kilobytes(status, "RssAnon:");
  };
  const double before = used();
  std::vector<std::unique_ptr<Client>> clients;
  for (std::size_t i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<Client>(-1));
    ask(*clients.back());
  }
  const double each = (used() - before) / static_cast<double>(count) / 1024;
  const double idle_from = processor_seconds(server.process());
  std::this_thread::sleep_for(3s);
  const double idle = processor_seconds(server.process()) - idle_from;
  fmt::print(
      "{} sessions open: {:.1f} KiB each, of both sides and the kernel; {:.3f} s of "
      "processor time in 3 s of silence; a hot client's call {:.2f} us, before {:.2f} us\n",
      count, each, idle, hot_us(), before_us);
}

void measure_silence() {
  constexpr auto kSilence = 10s;
  constexpr int kCalls = 3;
  const ServerProcess server = door_server(answer_same);
  const UniqueFd door = server.receive();
  int there[2];
  int back[2];
  must(::pipe(there) == 0 && ::pipe(back) == 0, "pipe");
  const ServerProcess echo({}, [&](int) {
    std::array<char, kBytes> message;
    while (::read(there[0], message.data(), kBytes) == kBytes)
      if (::write(back[1], message.data(), kBytes) != kBytes) return;
  });
  std::array<char, kBytes> message{};
  call(door.get(), message, message);
  std::vector<double> doors;
  std::vector<double> pipes;
  for (int i = 0; i < kCalls; ++i) {
    std::this_thread::sleep_for(kSilence);
    doors.push_back(usual_us(1, [&] { call(door.get(), message, message); }));
    std::this_thread::sleep_for(kSilence);
    pipes.push_back(usual_us(1, [&] {
      must(::write(there[1], message.data(), kBytes) == kBytes, "write");
      must(::read(back[0], message.data(), kBytes) == kBytes, "read");
    }));
  }
  fmt::print("a call after 10 s of silence: {} us; through pipes {} us\n", spread(doors),
             spread(pipes));
}

struct Measurement {
  std::string_view name;
  void (*run)();
};
constexpr std::array kMeasurements{
    Measurement{"threads", measure_threads}, Measurement{"request", measure_request},
    Measurement{"sessions", measure_sessions}, Measurement{"silence", measure_silence}};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string_view> wanted(argv + 1, argv + argc);
  for (const std::string_view name : wanted) {
    if (std::ranges::find(kMeasurements, name, &Measurement::name) != kMeasurements.end()) continue;
    const bool asked = name == "--help" || name == "-h";
    fmt::print(asked ? stdout : stderr,
               "Usage: bench-doors [threads] [request] [sessions] [silence]    (default: all)\n");
    return asked ? 0 : 2;
  }
  try {
    for (const Measurement& one : kMeasurements)
      if (wanted.empty() || std::ranges::find(wanted, one.name) != wanted.end()) one.run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench-doors: {}\n", error.what());
    return 1;
  }
  return 0;
}
