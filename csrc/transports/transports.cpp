#include "transports/transports.h"

#include "cuda/cuda_accelerator.h"
#include "cuda/driver/gpu.h"
#include "transports/gloo/gloo_transport.h"
#include "transports/loopback/loopback_connection.h"
#include "transports/shm/shm_transport.h"
#include "transports/tcp/tcp_transport.h"
// The build files tell by DLSLIME_HAVE_VERBS whether to build with
// infiniband/verbs.h; libibverbs is opened at run time only.
#if DLSLIME_HAVE_VERBS
#include "transports/rdma/rdma_transport.h"
#endif

namespace dlslime {

namespace {

std::unique_ptr<Transport> makeRdma([[maybe_unused]] const Config& config) {
#if DLSLIME_HAVE_VERBS
  return std::make_unique<rdma::RdmaTransport>(config.rdma, cuda::gpusInUse);
#else
  throw Error(
      ErrorCode::kUnavailable,
      "built without RDMA: infiniband/verbs.h was not there, or "
      "DLSLIME_BUILD_RDMA=off hid it; install libibverbs-dev (or "
      "rdma-core-devel) and build again");
#endif
}

} // namespace

template <typename Make>
void Transports::add(const char* name, const Make& make) {
  try {
    all_.push_back(make());
    routes_.push_back({name, all_.back().get(), ""});
  } catch (const Error& error) {
    routes_.push_back({name, nullptr, error.what()});
  }
}

Transports::Transports(const Config& config) {
  add("shm", [&] { return std::make_unique<shm::ShmTransport>(config); });
  add("rdma", [&] { return makeRdma(config); });
  add("tcp", [] { return std::make_unique<tcp::TcpTransport>(); });
  add("gloo", [] { return std::make_unique<gloo::GlooTransport>(); });
}

Transport* Transports::find(const std::string& name) const {
  for (const auto& transport : all_) {
    if (transport->name() == name) {
      return transport.get();
    }
  }
  return nullptr;
}

std::string Transports::whyNot(const std::string& name) const {
  for (const auto& route : routes_) {
    if (route.route == name) {
      return route.reason;
    }
  }
  return "there is no such route";
}

std::unique_ptr<Connection> Transports::makeSelfConnection() {
  return std::make_unique<loopback::LoopbackConnection>();
}

std::unique_ptr<Accelerator> makeAccelerator(const Config& config) {
  return std::make_unique<cuda::CudaAccelerator>(
      config.gpuKernel, config.streamWaits);
}

int deviceOf(const std::byte* address) {
  return cuda::deviceOf(address);
}

} // namespace dlslime
