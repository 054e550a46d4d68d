#include "nccl.h"

#include <mutex>

namespace fake_gpu {

namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::mutex mutex;
std::vector<std::string> calls; // guarded by mutex

void note(const char* call) {
  const std::lock_guard<std::mutex> guard(mutex);
  calls.emplace_back(call);
}

class Nccl final : public c10d::Backend {
 public:
  explicit Nccl(c10::intrusive_ptr<c10d::Backend> carrier)
      : Backend(carrier->getRank(), carrier->getSize()),
        carrier_(std::move(carrier)) {}

  const std::string getBackendName() const override {
    return "nccl";
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options)
      override {
    return byCpu("broadcast", tensors, [&](Tensors& own) {
      return carrier_->broadcast(own, options);
    });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override {
    return byCpu("allreduce", tensors, [&](Tensors& own) {
      return carrier_->allreduce(own, options);
    });
  }
  WorkPtr allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override {
    return byCpu("allreduce_coalesced", tensors, [&](Tensors& own) {
      return carrier_->allreduce_coalesced(own, options);
    });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options)
      override {
    return byCpu("reduce", tensors, [&](Tensors& own) {
      return carrier_->reduce(own, options);
    });
  }
  WorkPtr allgather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    Tensors all = outputs.at(0);
    all.push_back(inputs.at(0));
    return byCpu("allgather", all, [&](Tensors& own) {
      std::vector<Tensors> out{Tensors(own.begin(), own.end() - 1)};
      Tensors in{own.back()};
      return carrier_->allgather(out, in, options);
    });
  }
  WorkPtr _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    Tensors all{output, input};
    return byCpu("_reduce_scatter_base", all, [&](Tensors& own) {
      return carrier_->_reduce_scatter_base(own[0], own[1], options);
    });
  }
  WorkPtr _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override {
    Tensors all{output, input};
    return byCpu("_allgather_base", all, [&](Tensors& own) {
      return carrier_->_allgather_base(own[0], own[1], options);
    });
  }
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& outputSizes,
      std::vector<int64_t>& inputSizes,
      const c10d::AllToAllOptions& options) override {
    Tensors all{output, input};
    return byCpu("alltoall_base", all, [&](Tensors& own) {
      return carrier_->alltoall_base(
          own[0], own[1], outputSizes, inputSizes, options);
    });
  }
  void shutdown() override {
    note("shutdown");
    carrier_->shutdown();
  }
  void abort() override {
    note("abort");
    carrier_->abort();
  }
  void suspend() override {
    note("suspend");
  }
  void resume() override {
    note("resume");
  }
  std::unordered_map<std::string, uint64_t> getMemoryStats() override {
    return {{"suspend", 1000}, {"total", 1000}};
  }

 private:
  template <typename Collective>
  WorkPtr
  byCpu(const char* name, Tensors& tensors, const Collective& collective) {
    note(name);
    Tensors own;
    for (const auto& tensor : tensors) {
      TORCH_CHECK(tensor.is_cuda(), "NCCL takes CUDA tensors alone");
      own.push_back(tensor.cpu());
    }
    auto work = collective(own);
    work->wait();
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].copy_(own[i]);
    }
    return work;
  }

  const c10::intrusive_ptr<c10d::Backend> carrier_;
};

} // namespace

c10::intrusive_ptr<c10d::Backend> makeNccl(
    c10::intrusive_ptr<c10d::Backend> carrier) {
  return c10::make_intrusive<Nccl>(std::move(carrier));
}

std::vector<std::string> takeNcclCalls() {
  const std::lock_guard<std::mutex> guard(mutex);
  return std::exchange(calls, {});
}

} // namespace fake_gpu
