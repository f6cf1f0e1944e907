// SPDX-License-Identifier: Apache-2.0
//
// Both bridges of a service, on paths and names of their own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "bridge/harness.hpp"
#include "farcall/message.h"

namespace farcall::test {

using Options = std::vector<std::string>;

class BridgeMeaning : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_nats(); !reason.empty()) GTEST_SKIP() << reason;
    nats_ = std::make_unique<Nats>(scratch_);
  }
  // The path and name of the service; those of the import have an r in front.
  [[nodiscard]] std::string path(const std::string& name = "door") const {
    return scratch_.file(name);
  }
  [[nodiscard]] static std::string channel(const std::string& name = "channel") {
    return "bridge-test-" + name + "-" + std::to_string(::getpid());
  }
  Options with(const Options& more) const {
    Options all{"--nats",     nats_->url(),      "--death-bound",
                death_bound_, "--connect-bound", connect_bound_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void start_service() { service_ = std::make_unique<Service>(path(), channel()); }
  void start_exporter() {
    exporter_ = start_bridge(scratch_, channel("exporter"),
                             with({"--export", "door:" + path() + "=d.v1", "--export",
                                   "channel:" + channel() + "=c.v1"}));
  }
  void start_importer() {
    importer_ = start_bridge(scratch_, channel("importer"),
                             with({"--import", "d.v1=door:" + path("rdoor"), "--import",
                                   "c.v1=channel:" + channel("r")}));
  }
  void start_all() {
    start_service();
    start_exporter();
    start_importer();
    ASSERT_TRUE(comes_true([this] { return call_door(path("rdoor"), "x") == "x"; }))
        << importer_->said() << exporter_->said();
  }
  [[nodiscard]] std::string call(const std::string& request) const {
    return call_door(path("rdoor"), request);
  }
  [[nodiscard]] static std::string send(const std::string& request, double timeout_s = 0) {
    return send_to(channel("r"), request, timeout_s);
  }
  [[nodiscard]] Seen& seen() const { return service_->seen(); }
  // One-way messages and pulses of its names, all together.
  static int undelivered(const std::string& bridge) { return count(bridge, "undelivered"); }
  static int count(const std::string& bridge, const std::string& what) {
    const std::string text = bridge_status(bridge);
    const std::regex counted("\"" + what + "\":(\\d+)");
    int all = 0;
    for (std::sregex_iterator at(text.begin(), text.end(), counted); at != std::sregex_iterator();
         ++at)
      all += std::stoi((*at)[1]);
    return all;
  }

  // How many. Those on their way have a bound: what is too much at once is dropped, and by whom is
  // not known everywhere.
  int send_one_way_until(const std::atomic<bool>& stop, int connection) const {
    constexpr int kOnTheirWay = 2000;
    int sent = 0;
    while (!stop) {
      ::usleep(50);
      if (sent - seen().one_way > kOnTheirWay) continue;
      const std::string number = std::to_string(sent++);
      EXPECT_EQ(::farcall_send_one_way(connection, number.data(), number.size()), 0);
    }
    return sent;
  }

  // In seconds: short only where it is waited for, as who gets no processor for so long is dead.
  std::string death_bound_ = "10";
  std::string connect_bound_ = "20";
  ScratchDirectory scratch_;
  std::unique_ptr<Nats> nats_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Program> exporter_;
  std::unique_ptr<Program> importer_;
};

}  // namespace farcall::test
