// SPDX-License-Identifier: Apache-2.0
//
// Fast DDS, a topic for each direction, by data sharing, which its documentation calls fastest on
// one machine: the reader looks into the writer's history. A writer that does not wait for answers
// writes over what has not been read, reliable or not, so it has calls only.
//
// Its files in /dev/shm stay when their processes are killed. So both processes have a /dev/shm of
// their own, where that is permitted, which goes with them.
#include <fastdds/rtps/transport/shared_mem/SharedMemTransportDescriptor.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fastdds/dds/domain/DomainParticipant.hpp>
#include <fastdds/dds/domain/DomainParticipantFactory.hpp>
#include <fastdds/dds/log/Log.hpp>
#include <fastdds/dds/publisher/DataWriter.hpp>
#include <fastdds/dds/publisher/Publisher.hpp>
#include <fastdds/dds/subscriber/DataReader.hpp>
#include <fastdds/dds/subscriber/SampleInfo.hpp>
#include <fastdds/dds/subscriber/Subscriber.hpp>
#include <fastdds/dds/topic/TopicDataType.hpp>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "compare/rows/module.hpp"

namespace farcall::compare {
namespace {

namespace dds = eprosima::fastdds::dds;
namespace rtps = eprosima::fastrtps::rtps;
using eprosima::fastrtps::types::ReturnCode_t;

// Bytes in front of each message, which say how it is coded.
constexpr std::size_t kEncapsulation = 4;

void check(ReturnCode_t result, const char* what) {
  if (result != ReturnCode_t::RETCODE_OK)
    throw std::runtime_error(std::string(what) + ": error " + std::to_string(result()));
}
template <class Object>
Object* check(Object* object, const char* what) {
  if (object == nullptr) throw std::runtime_error(std::string(what) + " is refused");
  return object;
}

void write_file(const char* path, const std::string& text) {
  const UniqueFd file(::open(path, O_WRONLY | O_CLOEXEC));
  if (!file || ::write(file.get(), text.data(), text.size()) < 0) throw_errno(path);
}

// For this process and its children. Who is not root is in a namespace of users for that. Where
// none of it is permitted, as in some containers, what is killed leaves its files.
void take_own_shared_memory() {
  const std::string user = std::to_string(::geteuid());
  const std::string group = std::to_string(::getegid());
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return;
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", user + " " + user + " 1");
    write_file("/proc/self/gid_map", group + " " + group + " 1");
  }
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0)
    ::mount("farcall", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, nullptr);
}

// Messages of one length, which lie in memory as they are.
class Bytes final : public dds::TopicDataType {
 public:
  explicit Bytes(std::size_t bytes) : bytes_(bytes) {
    setName("farcall::bytes");
    m_typeSize = static_cast<std::uint32_t>(kEncapsulation + std::max<std::size_t>(bytes, 1));
    auto_fill_type_object(false);
    auto_fill_type_information(false);
  }
  bool serialize(void* data, rtps::SerializedPayload_t* payload) override {
    payload->encapsulation = CDR_LE;
    payload->length = m_typeSize;
    std::memset(payload->data, 0, kEncapsulation);
    payload->data[1] = CDR_LE;
    std::memcpy(payload->data + kEncapsulation, data, bytes_);
    return true;
  }
  bool deserialize(rtps::SerializedPayload_t* payload, void* data) override {
    if (payload->length != m_typeSize) return false;
    std::memcpy(data, payload->data + kEncapsulation, bytes_);
    return true;
  }
  std::function<std::uint32_t()> getSerializedSizeProvider(void*) override {
    return [size = m_typeSize] { return size; };
  }
  void* createData() override { return new std::byte[m_typeSize]; }
  void deleteData(void* data) override { delete[] static_cast<std::byte*>(data); }
  bool getKey(void*, rtps::InstanceHandle_t*, bool) override { return false; }
  [[nodiscard]] bool is_bounded() const override { return true; }
  [[nodiscard]] bool is_plain() const override { return true; }
  // It has been zeroed.
  bool construct_sample(void*) const override { return true; }

 private:
  std::size_t bytes_;
};

class FastDdsEnd final : public CallEndpoint {
 public:
  FastDdsEnd(const Conditions& conditions, const Introduction& introduction, Role role) {
    dds::Log::SetVerbosity(dds::Log::Error);
    dds::Log::ClearConsumers();
    join();
    const dds::TypeSupport type(new Bytes(conditions.message_bytes));
    check(type.register_type(participant_), "register a type");
    const bool is_client = role == Role::client;
    write_to(topic(conditions, is_client ? "requests" : "replies"));
    read_from(topic(conditions, is_client ? "replies" : "requests"));
    wait_for_peer();
    introduction.meet();
  }
  ~FastDdsEnd() override { leave(); }

  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    write(request);
    take(reply);
  }
  void serve(Service& service, std::span<std::byte> message) override {
    bool more = true;
    while (more) {
      take(message);
      more = service.answer(message);
      write(message);
    }
  }

 private:
  void write(std::span<const std::byte> message) {
    void* place = nullptr;
    check(writer_->loan_sample(place), "lend a place");
    std::memcpy(place, message.data(), message.size());
    if (!writer_->write(place)) throw SystemError(EIO, "Fast DDS writes not");
  }
  void take(std::span<std::byte> message) {
    dds::SampleInfo about;
    for (;;) {
      const ReturnCode_t taken = reader_->take_next_sample(message.data(), &about);
      if (taken == ReturnCode_t::RETCODE_OK && about.valid_data) return;
      if (taken == ReturnCode_t::RETCODE_OK) throw SystemError(ECONNRESET, "the writer has gone");
      if (taken != ReturnCode_t::RETCODE_NO_DATA) check(taken, "take a message");
      reader_->wait_for_unread_message({100, 0});
    }
  }
  void join() {
    dds::DomainParticipantQos qos = dds::PARTICIPANT_QOS_DEFAULT;
    qos.transport().use_builtin_transports = false;
    qos.transport().user_transports.push_back(
        std::make_shared<eprosima::fastdds::rtps::SharedMemTransportDescriptor>());
    participant_ = check(dds::DomainParticipantFactory::get_instance()->create_participant(0, qos),
                         "a participant");
  }
  dds::Topic* topic(const Conditions& conditions, const char* way) {
    return check(participant_->create_topic(conditions.name + "/" + way, "farcall::bytes",
                                            dds::TOPIC_QOS_DEFAULT),
                 "a topic");
  }
  // Of a writer and of a reader.
  template <class Qos>
  static void set(Qos& qos) {
    constexpr std::int32_t kMessages = 4;  // there is memory for so many, and one is on its way
    qos.reliability().kind = dds::RELIABLE_RELIABILITY_QOS;
    qos.resource_limits().max_samples = kMessages;
    qos.resource_limits().max_instances = 1;
    qos.resource_limits().max_samples_per_instance = kMessages;
    qos.resource_limits().allocated_samples = kMessages;
    qos.data_sharing().on("");
  }
  void write_to(dds::Topic* topic) {
    dds::Publisher* const publisher =
        check(participant_->create_publisher(dds::PUBLISHER_QOS_DEFAULT), "a publisher");
    dds::DataWriterQos qos = dds::DATAWRITER_QOS_DEFAULT;
    set(qos);
    writer_ = check(publisher->create_datawriter(topic, qos), "a writer");
  }
  void read_from(dds::Topic* topic) {
    dds::Subscriber* const subscriber =
        check(participant_->create_subscriber(dds::SUBSCRIBER_QOS_DEFAULT), "a subscriber");
    dds::DataReaderQos qos = dds::DATAREADER_QOS_DEFAULT;
    set(qos);
    reader_ = check(subscriber->create_datareader(topic, qos), "a reader");
  }
  // They find each other in the background.
  void wait_for_peer() const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (;;) {
      dds::PublicationMatchedStatus writers;
      dds::SubscriptionMatchedStatus readers;
      check(writer_->get_publication_matched_status(writers), "ask the writer");
      check(reader_->get_subscription_matched_status(readers), "ask the reader");
      if (writers.current_count != 0 && readers.current_count != 0) return;
      if (std::chrono::steady_clock::now() >= until)
        throw SystemError(ETIMEDOUT, "Fast DDS finds not the other process");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void leave() noexcept {
    participant_->delete_contained_entities();
    dds::DomainParticipantFactory::get_instance()->delete_participant(participant_);
  }

  dds::DomainParticipant* participant_ = nullptr;
  dds::DataWriter* writer_ = nullptr;
  dds::DataReader* reader_ = nullptr;
};

class FastDdsConnection final : public Connection {
 public:
  explicit FastDdsConnection(Conditions conditions) : conditions_(std::move(conditions)) {
    take_own_shared_memory();
  }
  // Its threads do not survive a fork, so all is made here.
  std::unique_ptr<Endpoint> open(Role role) override {
    introduction_.take(role);
    return std::make_unique<FastDdsEnd>(conditions_, introduction_, role);
  }

 private:
  Conditions conditions_;
  Introduction introduction_;
};

}  // namespace
}  // namespace farcall::compare

extern "C" farcall::compare::Connection* farcall_peer_connection(
    const farcall::compare::Conditions& conditions, const farcall::compare::RowInfo&) {
  return new farcall::compare::FastDdsConnection(conditions);
}
