// Writes first inputs for the fuzzers, as far as the project's encoders can
// make the inputs: make_seeds FOLDER fills FOLDER/<target>/.
#include <filesystem>
#include <fstream>
#include <random>

#include "base/memory/shared_memory.h"
#include "cuda/exports.h"
#include "engine/bootstrap/session_key.h"
#include "engine/one_sided/region.h"
#include "fuzz.h"
#if DLSLIME_HAVE_VERBS
#include "transports/rdma/end_address.h"
#endif

namespace dlslime::fuzz {
namespace {

std::filesystem::path root;

void write(const std::string& target, const char* name, const Bytes& bytes) {
  std::filesystem::create_directories(root / target);
  std::ofstream file(root / target / name, std::ios::binary);
  file.write(
      reinterpret_cast<const char*>(bytes.data()),
      static_cast<std::streamsize>(bytes.size()));
}
void write(const std::string& target, const char* name, const char* text) {
  write(target, name, copyOf(std::as_bytes(std::span(std::string_view(text)))));
}

// Writes bytes for Input::blob().
void blob(ByteWriter& writer, ByteSpan bytes) {
  writer.number(static_cast<uint16_t>(bytes.size()));
  writer.raw(bytes);
}

// As in acceptor.cpp: the instances of the acceptor and of the initiator.
const Bytes kTarget(kInstanceBytes, std::byte{1});
const Bytes kSelf(kInstanceBytes, std::byte{2});

PeerIdentity identity() {
  return {
      kSelf,
      "0b0e7ed2-8c17-4a5e-b1c5-6f1a3f6f1a2b",
      "host-a",
      7,
      4242,
      9,
      100009,
      "2049:77"};
}
AddressRecord address() {
  return {
      identity(),
      Bytes(32, std::byte{5}),
      "dlslime-0123456789abcdef",
      {"10.9.0.1:4711", "[2001:db8::1]:4711"},
      3,
      1};
}
Greeting greeting(SecretKind secret) {
  return {kTarget, kSelf, RoutePolicy::kAuto, secret, Bytes(32, std::byte{3})};
}
Hello hello(uint8_t descriptors) {
  Hello made;
  made.self = identity();
  made.socketName = address().socketName;
  made.addresses = address().addresses;
  made.nonce = "0123456789abcdef";
  made.group = 3;
  made.unexpectedLimit = 1 << 24;
  made.route = "shm";
  made.blob = Bytes(8, std::byte{1});
  made.descriptors = descriptors;
  made.rejected = {{"rdma", "it has no NIC"}};
  return made;
}

void writeRecords() {
  write("address_record", "record", encode(address()));
  write("greeting", "token", encode(greeting(SecretKind::kToken)));
  write("greeting", "pair", encode(greeting(SecretKind::kPair)));
  write(
      "challenge",
      "accepted",
      encode(Challenge{Verdict::kAccepted, "", Bytes(32), Bytes(32)}));
  write(
      "challenge",
      "later",
      encode(Challenge{Verdict::kLater, "no descriptor \xc3\xa4", {}, {}}));
  auto probe = hello(0);
  probe.probe = true;
  probe.replaces = 2;
  write("hello", "plain", encode(hello(2)));
  write("hello", "probe", encode(probe));
  write("welcome", "refused", encode(Welcome{Verdict::kRefused, "no", {}}));
  write(
      "welcome",
      "accepted",
      encode(Welcome{Verdict::kAccepted, "", Bytes(8), 1, 1, 1 << 24}));
  write("confirm", "good", encode(Confirm{"0123456789abcdef", Bytes(4), ""}));
  write("confirm", "bad", encode(Confirm{"0123456789abcdef", {}, "lost\n"}));
  for (const bool hub : {false, true}) { // as endpointAddress() writes
    ByteWriter writer;
    writePreamble(writer);
    writer.blob(Bytes(16, hub ? std::byte{0} : std::byte{1}));
    writer.blob(encode(address()));
    writer.blob(encode(address()));
    write("endpoint", hub ? "hub" : "endpoint", writer.take());
  }
}

void writeMemory() {
  RegionHandle handle{
      kSelf, 7, "host-a", 1, 99, 1 << 20, 6000, false, "kv", {"file 1", 8192}};
  for (const bool named : {true, false}) {
    ByteWriter region;
    handle.name = named ? "kv" : "";
    blob(region, encode(handle));
    for (int i = 0; i < 13; ++i) {
      region.number(static_cast<uint16_t>(i * 64));
    }
    write("region", named ? "named" : "nameless", region.take());
  }
  write("shared_memory", "page", SharedMemory(4096).describe());
  cuda::ExportedAllocation exported;
  exported.id = 1;
  exported.base = 1 << 21;
  exported.size = 1 << 21;
  ByteWriter share;
  for (const uint8_t kind : {2, 3, 0}) {
    share.number(uint64_t{0});
    share.number(uint8_t{0});
    share.number(kind);
    if (kind != 0) {
      blob(share, cuda::encode(exported));
    }
  }
  write("gpu_allocation", "share", share.take());
#if DLSLIME_HAVE_VERBS
  rdma::EndAddress end;
  end.ring = 1 << 20;
  for (const uint8_t rail : {0, 1}) {
    end.rails.push_back({rail, rail, {}, 77});
  }
  write("rdma_address", "two_rails", end.encode());
#endif
}

// Writes the harness's steps: the way of connecting, and the bytes to send.
void writeAcceptor() {
  const auto frame = [](ByteSpan record) {
    ByteWriter writer;
    writer.blob(record);
    return writer.take();
  };
  const auto hand = encode(greeting(SecretKind::kToken));
  for (const uint8_t how : {1, 0}) {
    ByteWriter stranger;
    stranger.number(how);
    stranger.number(uint8_t{0});
    blob(stranger, frame(hand));
    stranger.number(uint8_t{0});
    write("acceptor", how == 1 ? "stranger" : "stranger_tcp", stranger.take());
  }
  for (const uint8_t descriptors : {0, 2}) {
    ByteWriter friendly;
    friendly.number(uint8_t{7});
    friendly.number(uint8_t{3});
    blob(friendly, encode(hello(descriptors)));
    friendly.number(uint8_t{1});
    if (descriptors > 0) {
      friendly.number(uint8_t{1});
      friendly.number(static_cast<uint8_t>(descriptors - 1));
      friendly.number(uint8_t{1});
    }
    friendly.number(uint8_t{2});
    blob(friendly, encode(Confirm{hello(0).nonce, Bytes(4), ""}));
    friendly.number(uint8_t{1});
    write("acceptor", descriptors > 0 ? "shm" : "gloo", friendly.take());
  }
  ByteWriter socket;
  socket.number(uint8_t{3});
  blob(socket, hand);
  socket.number(uint8_t{5});
  socket.number(uint8_t{2});
  socket.number(uint8_t{0});
  socket.number(uint8_t{1});
  socket.number(uint8_t{2});
  socket.number(uint8_t{1});
  write("control_socket", "frame_and_descriptors", socket.take());
}

// Writes bytes in torch_ext's format, since torch_ext is not linked here.
void writeTorch() {
  ByteWriter message;
  message.number(uint32_t{1}); // a part
  message.number(uint32_t{3}); // of rank 3
  message.text("key");
  message.number(uint64_t{5});
  message.number(uint64_t{0});
  message.text("value");
  write("store_message", "part", message.take());
  ByteWriter part;
  part.blob(encode(RegionHandle{
      kSelf, 7, "host-a", 1, 99, 1 << 20, 24, false, "", {"", 0}}));
  part.number(uint8_t{6}); // float
  part.number(uint8_t{2});
  part.number(int64_t{2});
  part.number(int64_t{3});
  part.blob(SharedMemory(4096).describe());
  part.number(uint64_t{0});
  write("window_part", "float_2_3", part.take());
  ByteWriter frame;
  frame.text("key");
  frame.text("value");
  ByteWriter whole;
  whole.blob(frame.take());
  ByteWriter early;
  early.number(uint16_t{0});
  early.raw(whole.take());
  write("pair_store", "key", early.take());
}

// Writes any bytes, for inputs that are sequences of steps.
void writeSteps() {
  std::mt19937 random(1);
  for (const auto* const target :
       {"message", "shm_segment", "shm_offer", "rdma_ring", "gpu_allocation"}) {
    for (const auto& [name, size] : {std::pair("steps", 300), {"few", 30}}) {
      Bytes bytes(static_cast<size_t>(size));
      for (auto& byte : bytes) {
        // Steps are mostly chosen by small numbers.
        byte = static_cast<std::byte>(random() % (random() % 4 ? 16 : 256));
      }
      write(target, name, bytes);
    }
  }
  ByteWriter frames;
  for (const uint32_t size : {0, 4000, 9000}) {
    MessageHeader header;
    header.type = MessageType::kEager;
    header.payloadSize = size;
    frames.raw(std::as_bytes(std::span(&header, 1)));
    frames.raw(Bytes(size > 8192 ? 16 : 8));
  }
  write("gloo_frames", "three", frames.take());
  ByteWriter stream; // for tcp_frames.cpp: early bytes, and steps
  for (const uint16_t size : {0, 700}) {
    MessageHeader header;
    header.type = MessageType::kEager;
    header.payloadSize = size;
    ByteWriter frame;
    frame.raw(std::as_bytes(std::span(&header, 1)));
    frame.raw(Bytes(size));
    if (size > 0) {
      stream.number(uint8_t{1}); // a blob
    }
    blob(stream, frame.take());
  }
  stream.number(uint32_t{99}); // portions of a hundred bytes
  write("tcp_frames", "two", stream.take());
}

void writeTexts() {
  write("session_key", "opened", "\1 never sealed by an end of the pair");
  write("session_key", "sealed", "\200\5\0\0 sealed");
  write(
      "net_address",
      "v4",
      "\1"
      "10.9.0.1:4711");
  write("net_address", "v6", "\1[2001:db8::1]:4711");
  write("net_address", "mapped", "\1[::ffff:10.9.0.2]:4711");
  write("config", "words", "\1\3shm\2\3off\16\5=eth0rdma,=mlx5_0,^mlx5_1:2");
  write("config", "numbers", "\17\0065000000\20\003100\22\004100x");
  write(
      "printable",
      "mixed",
      "\77\1z\xc3\xa4\xe2\x80\xae\xf0\x9f\x90\x8c\x1b[0m\xff\n");
}

} // namespace
} // namespace dlslime::fuzz

int main(int argc, char** argv) {
  using namespace dlslime::fuzz;
  if (argc != 2) {
    std::fprintf(stderr, "make_seeds FOLDER\n");
    return 2;
  }
  root = argv[1];
  writeRecords();
  writeMemory();
  writeAcceptor();
  writeSteps();
  writeTorch();
  writeTexts();
  return 0;
}
