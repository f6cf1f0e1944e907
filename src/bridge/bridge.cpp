// SPDX-License-Identifier: Apache-2.0
//
// What a bridge is made of, put together.
#include "farcall/bridge.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <list>
#include <nlohmann/json.hpp>

#include "bridge/calls.hpp"
#include "bridge/exporter.hpp"
#include "bridge/importer.hpp"
#include "bridge/nats.hpp"
#include "bridge/status.hpp"
#include "bridge/ticker.hpp"

namespace farcall::bridge {
namespace {

constexpr std::chrono::milliseconds kLook{250};  // whether exported names have servers
constexpr unsigned kSlowTick = 10;               // so many ticks between looks at every call

// The cluster's own word whether requests may be published to the subjects of imported names.
void probe(Connection& connection, const Config& config) {
  const Header header{.kind = Kind::probe};
  for (const Name& name : config.names)
    if (name.direction == Direction::imported)
      (void)connection.publish(connection.full(name.subject), nullptr, &header, {}, false);
}

// The cluster's word whether exported names may be subscribed to, also where nobody serves them
// yet. Calls that come meanwhile are sent on to others.
void check_exports(Connection& connection, const Config& config) {
  std::list<Subscription> all;
  for (const Name& name : config.names)
    if (name.direction == Direction::exported)
      all.push_back(connection.subscribe_queue(name.subject));
  connection.confirm();
  for (const Subscription& each : all) ::natsSubscription_Drain(each.get());
  connection.confirm();
  const Header elsewhere{.kind = Kind::reply, .error = ECONNREFUSED, .not_taken = true};
  for (const Subscription& each : all) {
    natsMsg* taken = nullptr;
    while (::natsSubscription_NextMsg(&taken, each.get(), 1) == NATS_OK) {
      const Msg message(taken);
      if (!message.reply().empty())
        (void)connection.publish(std::string(message.reply()), nullptr, &elsewhere, {}, false);
    }
  }
}

}  // namespace

class Bridge::Parts {
 public:
  explicit Parts(const Config& config);
  ~Parts();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  void drain(double seconds);
  [[nodiscard]] std::string status_json() const;

 private:
  void import_all(const Config& config);
  void end_exports() noexcept;
  bool tick(Clock::time_point now);
  void inbox(Msg message);
  void look();

  Connection connection_;
  Calls calls_;
  Sessions sessions_;
  std::list<Imported> imported_;
  std::mutex exports_lock_;         // held while exported_ ticks, or goes
  std::atomic<bool> ready_{false};  // it is complete
  std::list<std::unique_ptr<ExportedName>> exported_;
  unsigned ticks_ = 0;
  bool calls_left_ = true;
  std::optional<Ticker> ticker_;
  std::list<std::unique_ptr<ImportedServer>> servers_;
  std::unique_ptr<StatusChannel> status_;
  std::mutex lock_;  // protects stop_
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread looker_;
};

Bridge::Parts::Parts(const Config& config)
    : connection_(config), calls_(connection_, config), sessions_(connection_, config) {
  Worker::install_handler();
  connection_.listen({.publish_denied = [this](const std::string& to) { calls_.denied(to); },
                      .inbox = [this](Msg message) { inbox(std::move(message)); }});
  ticker_.emplace([this](Clock::time_point now) { return tick(now); });
  try {
    for (const Name& name : config.names)
      if (name.direction == Direction::exported)
        exported_.push_back(
            std::make_unique<ExportedName>(name, sessions_, *ticker_, config.workers));
    ready_ = true;
    check_exports(connection_, config);
    for (const auto& name : exported_) name->look_for_server();
    probe(connection_, config);
    connection_.confirm();
    import_all(config);
    if (!config.status.empty())
      status_ = std::make_unique<StatusChannel>(config.status, [this] { return status_json(); });
  } catch (...) {
    servers_.clear();
    connection_.close();
    end_exports();
    throw;
  }
  looker_ = std::thread([this] { look(); });
}

Bridge::Parts::~Parts() {
  {
    const std::lock_guard guard(lock_);
    stop_ = true;
  }
  changed_.notify_all();
  if (looker_.joinable()) looker_.join();
  status_.reset();
  servers_.clear();
  connection_.close();
  end_exports();
}

// The ticker goes on as long as their threads, which use it.
void Bridge::Parts::end_exports() noexcept {
  std::list<std::unique_ptr<ExportedName>> names;  // destroyed without the lock
  const std::lock_guard guard(exports_lock_);
  ready_ = false;
  names.swap(exported_);
}

void Bridge::Parts::import_all(const Config& config) {
  limit_door_threads(config.waiting);
  const ImportContext context{calls_, *ticker_};
  for (const Name& name : config.names) {
    if (name.direction != Direction::imported) continue;
    Imported& here = imported_.emplace_back();
    here.name = name;
    here.subject = connection_.full(name.subject);
    servers_.push_back(name.local == Local::door ? import_door(here, context)
                                                 : import_channel(here, context));
  }
}

bool Bridge::Parts::tick(Clock::time_point now) {
  bool busy = false;
  {
    const std::lock_guard guard(exports_lock_);
    if (ready_)
      for (const auto& name : exported_) busy = name->tick() || busy;
  }
  if (++ticks_ % kSlowTick == 0) {
    const bool outgoing = calls_.tick(now);
    const bool incoming = sessions_.tick(now);
    calls_left_ = outgoing || incoming;
  }
  return busy || calls_left_;
}

void Bridge::Parts::inbox(Msg message) {
  const std::string word(connection_.word_of(message.subject()));
  if (word.size() < 2) return;
  if (word.front() == 's') {
    if (const auto whole = sessions_.received(word, message)) whole->owner->serve_soon(whole);
  } else {
    calls_.received(word, std::move(message));
  }
}

void Bridge::Parts::look() {
  std::unique_lock lock(lock_);
  while (!stop_) {
    changed_.wait_for(lock, kLook, [this] { return stop_; });
    if (stop_) return;
    lock.unlock();
    for (const auto& name : exported_) {
      try {
        name->look_for_server();
      } catch (const BridgeError&) {
        // The cluster is away; it is tried again.
      }
    }
    lock.lock();
  }
}

void Bridge::Parts::drain(double seconds) {
  {
    const std::lock_guard guard(lock_);
    stop_ = true;
  }
  changed_.notify_all();
  looker_.join();
  for (const auto& name : exported_) name->stop_listening();
  servers_.clear();
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < until && !(calls_.empty() && sessions_.empty()))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

std::string Bridge::Parts::status_json() const {
  nlohmann::json all;
  all["pid"] = ::getpid();
  all["connected"] = connection_.is_up();
  all["server"] = connection_.server();
  all["reconnects"] = connection_.reconnects();
  all["names"] = nlohmann::json::array();
  for (const auto& name : exported_) {
    nlohmann::json each = describe(name->name, name->statistics);
    each["local_server"] = name->serves();
    all["names"].push_back(std::move(each));
  }
  for (const Imported& name : imported_)
    all["names"].push_back(describe(name.name, name.statistics));
  return all.dump();
}

Bridge::Bridge(const Config& config) {
  validate(config);
  parts_ = std::make_unique<Parts>(config);
}
Bridge::~Bridge() = default;
void Bridge::drain(double seconds) { parts_->drain(seconds); }
std::string Bridge::status_json() const { return parts_->status_json(); }

void check(const Config& config) {
  validate(config);
  Connection connection(config);
  connection.listen({.publish_denied = {}, .inbox = [](const Msg&) {}});
  check_exports(connection, config);
  probe(connection, config);
  connection.confirm();
}

}  // namespace farcall::bridge
