// SPDX-License-Identifier: Apache-2.0
//
// What a bridge is made of, put together.
#include "bridge/bridge.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <nlohmann/json.hpp>
#include <vector>

#include "bridge/calls.hpp"
#include "bridge/exporter.hpp"
#include "bridge/importer.hpp"
#include "bridge/nats.hpp"
#include "bridge/peers.hpp"
#include "bridge/reader.hpp"
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
      (void)connection.publish(connection.full(name.subject), nullptr, &header, {});
}

// Whether what has come for that exported name is taken care of.
using TakeEarly = std::function<bool(std::size_t number, Msg& message)>;

// The cluster's word whether exported names may be subscribed to, also where nobody serves them
// yet. What comes meanwhile and `take` leaves is sent on to others, if it is a call; nobody sends
// one-way messages again, and who has sent one counts it.
void check_exports(Connection& connection, const Config& config, const TakeEarly& take) {
  std::list<Subscription> all;
  std::uint64_t link = 0;
  for (const Name& name : config.names)
    if (name.direction == Direction::exported)
      all.push_back(connection.subscribe_queue(name.subject, link));
  connection.confirm();
  for (const Subscription& each : all) ::natsSubscription_Drain(each.get());
  connection.confirm();
  const Header elsewhere{.kind = Kind::reply, .error = ECONNREFUSED, .not_taken = true};
  const PeerSubjects peers(config, connection);
  std::size_t number = 0;
  for (const Subscription& each : all) {
    natsMsg* taken = nullptr;
    for (natsStatus status = NATS_OK; status == NATS_OK || status == NATS_NO_RESPONDERS;) {
      status = ::natsSubscription_NextMsg(&taken, each.get(), 1);
      Msg message(status == NATS_OK ? taken : nullptr);
      if (!message || take(number, message) || !peers.may_answer(message.reply())) continue;
      (void)connection.publish(std::string(message.reply()), nullptr, &elsewhere, {});
    }
    ++number;
  }
}

}  // namespace

class Bridge::Parts {
 public:
  Parts(const Config& config, const std::function<void()>& before_names);
  ~Parts();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  void drain(double seconds);
  [[nodiscard]] std::string status_json() const;

 private:
  Connection* connect(const Config& config, Direction direction);
  void import_all(const Config& config);
  void end() noexcept;
  bool tick(Clock::time_point now);
  bool handle(Reader& reader, Worker& worker);
  void inbox(const Connection& connection, Msg message);
  void look();
  void look_now();

  // Two, where there are names of both directions: exported ones are served by those who read, and
  // answers must not wait for them.
  std::list<Connection> connections_;
  Connection* const exporting_;
  Connection* const importing_;
  std::list<Imported> imported_;  // before what calls of theirs give back to them
  Calls calls_;
  Sessions sessions_;
  std::list<std::unique_ptr<ExportedName>> exported_;
  std::vector<ExportedName*> lately_;  // the same, by when a call of theirs has come; the leader's
  std::uint64_t taken_ = 0;            // of exporting_->came(); the leader's
  unsigned ticks_ = 0;
  std::optional<Ticker> ticker_;
  std::mutex reader_lock_;  // protects the next
  std::unique_ptr<Reader> reader_;
  std::list<std::unique_ptr<ImportedServer>> servers_;
  std::unique_ptr<StatusChannel> status_;
  std::mutex lock_;  // protects what follows
  std::condition_variable changed_;
  std::atomic<bool> stop_{false};
  bool look_ = false;  // at once
  std::thread looker_;
};

Bridge::Parts::Parts(const Config& config, const std::function<void()>& before_names)
    : exporting_(connect(config, Direction::exported)),
      importing_(connect(config, Direction::imported)),
      calls_(connections_.back(), config),
      sessions_(connections_.front(), config) {
  Worker::install_handler();
  ticker_.emplace([this](Clock::time_point now) { return tick(now); });
  try {
    for (Connection& each : connections_)
      each.listen({.publish_denied = [this](const std::string& to) { calls_.denied(to); },
                   .inbox = [this, &each](Msg message) { inbox(each, std::move(message)); },
                   .linked = [this] { look_now(); },
                   .lost =
                       [this, &each] {
                         if (&each == importing_) calls_.lost();
                       }});
    for (const Name& name : config.names)
      if (name.direction == Direction::exported)
        exported_.push_back(
            std::make_unique<ExportedName>(name, sessions_, *ticker_, config.workers));
    for (const auto& name : exported_) lately_.push_back(name.get());
    if (exporting_ != nullptr) {
      {
        const std::lock_guard guard(reader_lock_);
        reader_ = std::make_unique<Reader>(
            *exporting_, [this](Reader& reader, Worker& worker) { return handle(reader, worker); });
      }
      // What comes while it is tried whether they may listen waits for no server that says nothing.
      std::vector<ExportedName*> served;
      for (const auto& name : exported_)
        served.push_back(name->has_server() ? name.get() : nullptr);
      check_exports(*exporting_, config, [&served](std::size_t number, Msg& message) {
        if (served[number] == nullptr) return false;
        served[number]->take_early(std::move(message));
        return true;
      });
      for (ExportedName* const name : served)
        if (name != nullptr) name->look_for_server();
      exporting_->confirm();
    }
    if (importing_ != nullptr) {
      probe(*importing_, config);
      importing_->confirm();
    }
    if (before_names) before_names();
    if (importing_ != nullptr) import_all(config);
    if (!config.status.empty())
      status_ = std::make_unique<StatusChannel>(config.status, [this] { return status_json(); });
    if (!exported_.empty()) looker_ = std::thread([this] { look(); });
  } catch (...) {
    status_.reset();
    end();
    throw;
  }
}

// Null where there is no name of that direction.
Connection* Bridge::Parts::connect(const Config& config, Direction direction) {
  if (std::none_of(config.names.begin(), config.names.end(),
                   [&](const Name& name) { return name.direction == direction; }))
    return nullptr;
  return &connections_.emplace_back(config, direction == Direction::exported
                                                ? Connection::Reads::by_others
                                                : Connection::Reads::itself);
}

Bridge::Parts::~Parts() {
  {
    const std::lock_guard guard(lock_);
    stop_ = true;
  }
  changed_.notify_all();
  if (looker_.joinable()) looker_.join();
  status_.reset();
  end();
}

// Nobody who may still be at a call is to find its end gone: first those end that wait, then those
// that end them.
void Bridge::Parts::end() noexcept {
  for (Connection& each : connections_) each.hurry();
  for (const auto& server : servers_) server->close();
  calls_.end();
  sessions_.cancel_all();
  for (Connection& each : connections_) each.end_waits();
  std::unique_ptr<Reader> reader;
  {
    const std::lock_guard guard(reader_lock_);
    reader = std::move(reader_);
  }
  reader.reset();
  for (Connection& each : connections_) each.close();
  for (const auto& name : exported_) name->join();
  ticker_->stop();
  sessions_.clear();  // of the names, which they give back to
  exported_.clear();
  calls_.end();
  servers_.clear();
}

void Bridge::Parts::import_all(const Config& config) {
  limit_door_calls(config.waiting);
  const ImportContext context{calls_, *ticker_};
  for (const Name& name : config.names) {
    if (name.direction != Direction::imported) continue;
    Imported& here =
        imported_.emplace_back(name, importing_->full(name.subject), config.memory_mib << 20);
    servers_.push_back(name.local == Local::door ? import_door(here, context)
                                                 : import_channel(here, context));
  }
}

bool Bridge::Parts::tick(Clock::time_point now) {
  bool busy = false;
  {
    const std::lock_guard guard(reader_lock_);
    busy = reader_ && reader_->tick();
  }
  busy = look_after_door_threads() || busy;
  calls_.give_up_abandoned();
  if (++ticks_ % kSlowTick == 0) {
    calls_.tick(now);
    sessions_.tick(now);
  }
  return busy || !calls_.empty() || !sessions_.empty();
}

// Names are asked in turn for what has come, and no longer than there can be something: there may
// be many of them.
bool Bridge::Parts::handle(Reader& reader, Worker& worker) {
  for (std::uint64_t came = exporting_->came(); taken_ < came; came = exporting_->came()) {
    const std::uint64_t before = taken_;
    for (std::size_t i = 0; i < lately_.size() && taken_ < came; ++i) {
      const std::uint64_t others = taken_;
      if (!lately_[i]->take(reader, worker, taken_)) return false;
      if (taken_ != others) std::swap(lately_[i], lately_[i / 2]);
    }
    // What nobody listens to any more; and what had come to a name that was not listening yet.
    if (taken_ == before) taken_ = came;
    taken_ = std::min(taken_, exporting_->came());
    if (reader.stops()) return true;
    exporting_->read(std::chrono::milliseconds(0));
  }
  return true;
}

void Bridge::Parts::inbox(const Connection& connection, Msg message) {
  const std::string word(connection.word_of(message.subject()));
  if (word.size() < 2) return;
  if (word.front() == 's') {
    if (const auto whole = sessions_.received(word, message)) whole->owner->serve_soon(whole);
  } else {
    calls_.received(word, std::move(message));
  }
}

void Bridge::Parts::look_now() {
  const std::lock_guard guard(lock_);
  look_ = true;
  changed_.notify_all();
}

void Bridge::Parts::look() {
  std::unique_lock lock(lock_);
  while (!stop_) {
    changed_.wait_for(lock, kLook, [this] { return stop_ || look_; });
    if (stop_) return;
    look_ = false;
    lock.unlock();
    for (const auto& name : exported_) {
      if (stop_) break;
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
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  changed_.notify_all();
  if (looker_.joinable()) looker_.join();
  for (const auto& name : exported_) name->stop_listening();
  for (const auto& server : servers_) server->close();
  const auto over = [this] {
    bool drained = true;
    for (const auto& name : exported_) drained = name->forget_drained() && drained;
    return drained && calls_.empty() && sessions_.empty();
  };
  while (Clock::now() < until && !over()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

std::string Bridge::Parts::status_json() const {
  nlohmann::json all;
  all["pid"] = ::getpid();
  bool up = true;
  std::uint64_t reconnects = 0;
  std::vector<std::string> servers;
  for (const Connection& each : connections_) {
    up = up && each.is_up();
    reconnects += each.reconnects();
    if (std::find(servers.begin(), servers.end(), each.server()) == servers.end())
      servers.push_back(each.server());
  }
  all["connected"] = up;
  all["server"] = fmt::format("{}", fmt::join(servers, ", "));
  all["reconnects"] = reconnects;
  all["names"] = nlohmann::json::array();
  for (const auto& name : exported_) {
    nlohmann::json each = describe(name->name, name->statistics);
    each["local_server"] = name->serves();
    all["names"].push_back(std::move(each));
  }
  for (const Imported& name : imported_)
    all["names"].push_back(describe(name.name, name.statistics));
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Bridge::Bridge(const Config& config, const std::function<void()>& before_names) {
  validate(config);
  parts_ = std::make_unique<Parts>(config, before_names);
}
Bridge::~Bridge() = default;
void Bridge::drain(double seconds) { parts_->drain(seconds); }
std::string Bridge::status_json() const { return parts_->status_json(); }

void check(const Config& config) {
  validate(config);
  Connection connection(config, Connection::Reads::itself);
  connection.listen({.publish_denied = {}, .inbox = [](const Msg&) {}, .linked = {}, .lost = {}});
  check_exports(connection, config, [](std::size_t, Msg&) { return false; });
  probe(connection, config);
  connection.confirm();
}

}  // namespace farcall::bridge
