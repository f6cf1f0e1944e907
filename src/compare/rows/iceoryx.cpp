// SPDX-License-Identifier: Apache-2.0
//
// iceoryx 2: a publisher and its subscribers, who sleep in a WaitSet. Its daemon, RouDi, owns the
// memory and there is one per machine; each connection has its own, in a process that ends, and
// removes what iceoryx has in /dev/shm and /tmp, when the writer's process has ended in whatever
// way.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "compare/pipe.hpp"
#include "compare/rows/rows.hpp"
#include "compare/sides.hpp"
#include "farcall/memory.hpp"
#include "iceoryx_hoofs/log/logmanager.hpp"
#include "iceoryx_posh/iceoryx_posh_config.hpp"
#include "iceoryx_posh/internal/roudi/roudi.hpp"
#include "iceoryx_posh/popo/untyped_publisher.hpp"
#include "iceoryx_posh/popo/untyped_subscriber.hpp"
#include "iceoryx_posh/popo/wait_set.hpp"
#include "iceoryx_posh/roudi/iceoryx_roudi_components.hpp"
#include "iceoryx_posh/runtime/posh_runtime.hpp"

namespace farcall::compare {
namespace {

const iox::capro::ServiceDescription kService{"farcall", "compare", "broadcast"};

iox::RuntimeName_t runtime_name(const Conditions& conditions, const std::string& who) {
  return {iox::cxx::TruncateToCapacity, conditions.name + "-" + who};
}

void be_quiet() {
  iox::log::LogManager::GetLogManager().SetDefaultLogLevel(iox::log::LogLevel::kOff,
                                                           iox::log::LogLevelOutput::kHideLogLevel);
}

// What each process has to be before it has anything of iceoryx.
void join(const Conditions& conditions, const std::string& who) {
  be_quiet();
  iox::runtime::PoshRuntime::initRuntime(runtime_name(conditions, who));
}

iox::posix::PosixGroup::string_t group() {
  return iox::posix::PosixGroup::getGroupOfCurrentProcess().getName();
}

// What `who` has in /tmp, and leaves there if it ends without being asked.
void remove_files(const Conditions& conditions, const std::string& who) {
  const std::string path = std::string("/tmp/") + runtime_name(conditions, who).c_str();
  ::unlink(path.c_str());
  ::unlink((path + ".lock").c_str());
}

// The daemon. `alive` ends with the writer.
void run_daemon(const Conditions& conditions, int ready, int alive) {
  be_quiet();
  // It tells what it does, whatever the level.
  const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(nowhere.get(), fd);
  iox::RouDiConfig_t config;
  iox::mepoo::MePooConfig pools;
  // As much as the longest queues of all readers hold, and what is being written and read.
  const auto chunks = static_cast<std::uint32_t>((iox::MAX_SUBSCRIBER_QUEUE_CAPACITY + 2) *
                                                 (conditions.readers + 1));
  constexpr std::uint32_t kLeast = 128;  // that of its own messages
  const auto size =
      static_cast<std::uint32_t>((conditions.message_bytes + kLeast - 1) / kLeast * kLeast);
  pools.addMemPool({kLeast, chunks});
  if (size > kLeast) pools.addMemPool({size, chunks});
  config.m_sharedMemorySegments.push_back({group(), group(), pools});
  iox::roudi::IceOryxRouDiComponents components(config);
  const iox::roudi::RouDi daemon(
      components.rouDiMemoryManager, components.portManager,
      iox::roudi::RouDi::RoudiStartupParameters(iox::roudi::MonitoringMode::OFF, false));
  char byte = 1;
  if (::write(ready, &byte, 1) == 1)
    while (::read(alive, &byte, 1) < 0 && errno == EINTR) {
    }
  constexpr unsigned kLongestEnd = 10;  // seconds; nobody waits for it for ever
  ::alarm(kLongestEnd);
}

// Starts the daemon, and removes what it and its users have left: a daemon whose users were killed
// ends by abort(3).
void run_and_clean(const Conditions& conditions, UniqueFd ready, int alive) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
  int started[2];
  if (::pipe(started) != 0) return;
  const UniqueFd here(started[0]);
  UniqueFd there(started[1]);
  const pid_t daemon = ::fork();
  if (daemon == 0) {
    ready.reset();
    run_daemon(conditions, there.get(), alive);
    ::_exit(0);
  }
  there.reset();
  char byte = 0;
  // Without that they are another's.
  const bool ours = ::read(here.get(), &byte, 1) == 1;
  if (ours && ::write(ready.get(), &daemon, sizeof daemon) < 0) byte = 0;  // the writer has gone
  ready.reset();
  if (daemon > 0) ::waitpid(daemon, nullptr, 0);
  if (!ours) return;
  ::shm_unlink("/iceoryx_mgmt");
  ::shm_unlink(("/" + std::string(group().c_str())).c_str());
  ::unlink("/tmp/roudi");
  ::unlink("/tmp/roudi.lock");
  ::unlink("/tmp/iox-unique-roudi.lock");
  remove_files(conditions, "writer");
  for (unsigned i = 0; i < conditions.readers; ++i) remove_files(conditions, std::to_string(i));
}

// Several of this program take turns; who has this name has it until the files are removed.
UniqueFd take_turn() {
  constexpr std::int64_t kPatience = 15'000'000'000;
  constexpr std::string_view kName = "farcall-compare-iceoryx";
  UniqueFd turn(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, kName.data(), kName.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + kName.size());
  const std::int64_t until = now() + kPatience;
  while (::bind(turn.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    if (errno != EADDRINUSE || now() >= until) throw_errno("wait for another comparison's iceoryx");
    pause(10'000'000);
  }
  return turn;
}

class Daemon {
 public:
  explicit Daemon(const Conditions& conditions) : owner_(::getpid()) {
    const UniqueFd turn = take_turn();  // kept by the child
    auto [ready_here, ready_there] = make_pipe();
    auto [alive_there, alive_here] = make_pipe();
    alive_ = std::move(alive_here);
    pid_ = ::fork();
    if (pid_ < 0) throw_errno("fork");
    if (pid_ == 0) {
      alive_.reset();
      run_and_clean(conditions, std::move(ready_there), alive_there.get());
      ::_exit(0);
    }
    ready_there.reset();
    if (::read(ready_here.get(), &roudi_, sizeof roudi_) != sizeof roudi_)
      throw SystemError(EADDRINUSE, "start iceoryx's daemon: perhaps there is one");
  }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  ~Daemon() {
    alive_.reset();
    if (::getpid() == owner_) ::waitpid(pid_, nullptr, 0);
  }
  // In a child that is not to keep it.
  void forget() noexcept { alive_.reset(); }
  [[nodiscard]] pid_t roudi() const noexcept { return roudi_; }

 private:
  pid_t owner_;
  pid_t pid_ = -1;    // who cleans up behind it
  pid_t roudi_ = -1;  // the daemon itself
  UniqueFd alive_;
};

class IceoryxPublisher final : public WritingEnd {
 public:
  explicit IceoryxPublisher(bool overwrites)
      : publisher_(kService, {0, "", true,
                              overwrites ? iox::popo::ConsumerTooSlowPolicy::DISCARD_OLDEST_DATA
                                         : iox::popo::ConsumerTooSlowPolicy::WAIT_FOR_CONSUMER}) {}
  void send(std::span<const std::byte> message) override {
    auto chunk = publisher_.loan(static_cast<std::uint32_t>(message.size()));
    if (chunk.has_error()) throw SystemError(ENOMEM, "iceoryx has no chunk");
    std::memcpy(chunk.value(), message.data(), message.size());
    publisher_.publish(chunk.value());
  }

 private:
  iox::popo::UntypedPublisher publisher_;
};

class IceoryxSubscriber final : public ReadingEnd {
 public:
  explicit IceoryxSubscriber(bool overwrites) : subscriber_(kService, options(overwrites)) {
    if (wait_.attachState(subscriber_, iox::popo::SubscriberState::HAS_DATA).has_error())
      throw SystemError(EBUSY, "iceoryx attaches no subscriber");
    // In the background; who is in a hurry would miss the first messages.
    constexpr std::int64_t kPatience = 10'000'000'000;
    const std::int64_t until = now() + kPatience;
    while (subscriber_.getSubscriptionState() != iox::SubscribeState::SUBSCRIBED) {
      if (now() >= until) throw SystemError(ETIMEDOUT, "iceoryx subscribes nobody");
      pause(1'000'000);
    }
  }
  void receive(std::span<std::byte> message) override {
    for (;;) {
      auto taken = subscriber_.take();
      if (!taken.has_error()) {
        std::memcpy(message.data(), taken.value(), message.size());
        subscriber_.release(taken.value());
        return;
      }
      wait_.wait();
    }
  }

 private:
  static iox::popo::SubscriberOptions options(bool overwrites) {
    iox::popo::SubscriberOptions options;
    options.queueFullPolicy = overwrites ? iox::popo::QueueFullPolicy::DISCARD_OLDEST_DATA
                                         : iox::popo::QueueFullPolicy::BLOCK_PRODUCER;
    return options;
  }

  iox::popo::UntypedSubscriber subscriber_;
  iox::popo::WaitSet<1> wait_;
};

class IceoryxConnection final : public Connection {
 public:
  IceoryxConnection(Conditions conditions, bool overwrites)
      : conditions_(std::move(conditions)), overwrites_(overwrites), daemon_(conditions_) {}
  std::unique_ptr<Endpoint> open(Role) override {
    join(conditions_, "writer");
    return std::make_unique<IceoryxPublisher>(overwrites_);
  }
  std::unique_ptr<Endpoint> open_reader(unsigned index) override {
    daemon_.forget();
    join(conditions_, std::to_string(index));
    return std::make_unique<IceoryxSubscriber>(overwrites_);
  }
  [[nodiscard]] std::vector<pid_t> helpers() const override { return {daemon_.roudi()}; }

 private:
  Conditions conditions_;
  bool overwrites_;
  Daemon daemon_;
};

}  // namespace

void add_iceoryx(RowList& list) {
  const auto add = [&](bool overwrites, const char* mechanism, const char* description) {
    list.add({.mechanism = mechanism,
              .engine = "library",
              .wait = "block",
              .description = description,
              .policy = overwrites ? "overwrite" : "block"},
             makes<IceoryxConnection>(overwrites));
  };
  add(false, "iceoryx", "iceoryx, with its daemon; the writer waits");
  add(true, "iceoryx_overwrite", "iceoryx, with its daemon; slow readers miss what is old");
}

}  // namespace farcall::compare
