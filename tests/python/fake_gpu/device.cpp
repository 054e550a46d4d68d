// A device of the type "cuda" for a torch that was built without CUDA: tensors
// live in the fake driver's memory, and copies go by its streams. All other
// operators fall back to the CPU.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "memory.h"
#include "nccl.h"

namespace fake_gpu {

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

Device device(DeviceIndex index) {
  return {DeviceType::CUDA, index};
}

cuda::Stream nativeOf(const Stream& stream) {
  return reinterpret_cast<cuda::Stream>(stream.id());
}

Stream streamOf(Device on, cuda::Stream native) {
  return Stream(Stream::UNSAFE, on, reinterpret_cast<c10::StreamId>(native));
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override {
    return DeviceType::CUDA;
  }
  Device exchangeDevice(Device to) const override {
    return device(std::exchange(currentDevice(), to.index()));
  }
  Device getDevice() const override {
    return device(currentDevice());
  }
  void setDevice(Device to) const override {
    currentDevice() = to.index();
  }
  void uncheckedSetDevice(Device to) const noexcept override {
    currentDevice() = to.index();
  }
  Stream getStream(Device on) const override {
    return streamOf(on, currentStream(on.index()));
  }
  Stream getDefaultStream(Device on) const override {
    return streamOf(on, nullptr);
  }
  Stream getNewStream(Device on, int /*priority*/) const override {
    return streamOf(on, newStream(on.index()));
  }
  Stream exchangeStream(Stream to) const override {
    auto& current = currentStream(to.device_index());
    return streamOf(to.device(), std::exchange(current, nativeOf(to)));
  }
  void* getStreamNativeHandle(const Stream stream) const override {
    return nativeOf(stream);
  }
  DeviceIndex deviceCount() const noexcept override {
    return 2;
  }
  bool queryStream(const Stream& stream) const override {
    return idle(stream.device_index(), nativeOf(stream));
  }
  void record(
      void** event,
      const Stream& stream,
      DeviceIndex /*index*/,
      c10::EventFlag /*flag*/) const override {
    fake_gpu::record(event, stream.device_index(), nativeOf(stream));
  }
  void block(void* event, const Stream& stream) const override {
    fake_gpu::block(event, stream.device_index(), nativeOf(stream));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || reached(event);
  }
  void destroyEvent(void* event, DeviceIndex /*index*/)
      const noexcept override {
    destroy(event);
  }
  void synchronizeStream(const Stream& stream) const override {
    synchronize(stream.device_index(), nativeOf(stream));
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

const c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<Device> on,
    std::optional<bool> /*pinned*/,
    std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(on);
  return at::detail::empty_generic(
      size, &allocator(), kKeys, dtype.value_or(at::kFloat), format);
}

at::Tensor emptyStrided(
    c10::IntArrayRef size,
    c10::IntArrayRef strides,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<Device> on,
    std::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(on);
  return at::detail::empty_strided_generic(
      size, strides, &allocator(), kKeys, dtype.value_or(at::kFloat));
}

// Between tensors of one dtype that both lie in one piece.
void copyPlain(const at::Tensor& to, const at::Tensor& from, bool async) {
  const auto index = (to.is_cuda() ? to : from).get_device();
  const auto on = static_cast<DeviceIndex>(index);
  copyAsync(on, to.data_ptr(), from.const_data_ptr(), to.nbytes());
  if (!async) {
    synchronize(on, currentStream(on));
  }
}

at::Tensor onCpu(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) {
    return tensor;
  }
  // The whole storage, so that any strides will do.
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  auto whole = at::empty({bytes}, at::dtype(at::kByte));
  const auto on = static_cast<DeviceIndex>(tensor.get_device());
  copyAsync(
      on, whole.data_ptr(), tensor.storage().data(), tensor.storage().nbytes());
  synchronize(on, currentStream(on));
  auto result = at::empty({0}, tensor.options().device(at::kCPU));
  result.set_(
      whole.storage(),
      tensor.storage_offset(),
      tensor.sizes(),
      tensor.strides());
  return result;
}

// The same tensor where the processor finds its memory.
at::Tensor asSeenHere(const at::Tensor& tensor) {
  return at::from_blob(
      peek(tensor.mutable_data_ptr()),
      tensor.sizes(),
      tensor.strides(),
      tensor.options().device(at::kCPU));
}

// Of other dtypes or strides, in the stream's turn. Memory that is given back
// meanwhile is kept by the driver until its streams are done.
void copyByProcessor(const at::Tensor& to, const at::Tensor& from) {
  using Ends = std::pair<at::Tensor, at::Tensor>;
  const auto run = [](void* data) {
    const std::unique_ptr<Ends> ends(static_cast<Ends*>(data));
    ends->first.copy_(ends->second);
  };
  const auto on = static_cast<DeviceIndex>(to.get_device());
  launchHost(on, run, new Ends(asSeenHere(to), asSeenHere(from)));
}

// In the stream's turn, too, as kernels do.
at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  using Filling = std::pair<at::Tensor, at::Scalar>;
  const auto run = [](void* data) {
    const std::unique_ptr<Filling> filling(static_cast<Filling*>(data));
    filling->first.fill_(filling->second);
  };
  if (self.numel() > 0) {
    launchHost(
        static_cast<DeviceIndex>(self.get_device()),
        run,
        new Filling(asSeenHere(self), value));
  }
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  return fill(self, 0);
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool /*nonBlocking*/) {
  // As on a real GPU the host never waits for copies between GPUs' tensors.
  const bool between = to.is_cuda() && from.is_cuda();
  if (to.numel() == 0) {
    return to;
  }
  if (to.dtype() == from.dtype() && to.sizes() == from.sizes() &&
      to.is_contiguous() && from.is_contiguous()) {
    copyPlain(to, from, between);
    return to;
  }
  if (between) {
    copyByProcessor(to, from.expand_as(to));
    return to;
  }
  const auto source = onCpu(from);
  if (!to.is_cuda()) {
    return to.copy_(source);
  }
  auto target = onCpu(to);
  target.copy_(source);
  const auto on = static_cast<DeviceIndex>(to.get_device());
  copyAsync(
      on,
      to.storage().mutable_data(),
      target.storage().data(),
      to.storage().nbytes());
  synchronize(on, currentStream(on));
  return to;
}

at::Tensor
copyFrom(const at::Tensor& from, const at::Tensor& to, bool nonBlocking) {
  auto target = to;
  return copy(target, from, nonBlocking);
}

const at::Tensor& resizeTo(
    const at::Tensor& tensor,
    c10::IntArrayRef size,
    std::optional<at::MemoryFormat> /*format*/) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const auto bytes =
      tensor.nbytes() + tensor.storage_offset() * tensor.itemsize();
  auto storage = tensor.storage();
  if (storage.nbytes() < bytes) { // what was there is not kept
    const c10::DeviceGuard guard(tensor.device());
    storage.set_data_ptr_noswap(allocator().allocate(bytes));
    storage.set_nbytes(bytes);
  }
  return tensor;
}

at::Tensor copyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  resizeTo(to, from.sizes(), std::nullopt);
  return copyFrom(from, to, false);
}

at::Scalar localScalar(const at::Tensor& tensor) {
  return onCpu(tensor).item();
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

} // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &emptyStrided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &resizeTo);
  m.impl("copy_", &copy);
  m.impl("fill_.Scalar", &fill);
  m.impl("zero_", &zero);
  m.impl("_copy_from", &copyFrom);
  m.impl("_copy_from_and_resize", &copyFromAndResize);
  m.impl("_local_scalar_dense", &localScalar);
}

} // namespace fake_gpu

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  c10::SetAllocator(c10::DeviceType::CUDA, &fake_gpu::allocator());
  module.def("empty_cache", &fake_gpu::emptyCache);
  module.def("nccl", &fake_gpu::makeNccl);
  module.def("take_nccl_calls", &fake_gpu::takeNcclCalls);
  module.def("exchange_stream", [](c10::DeviceIndex index, int64_t stream) {
    using dlslime::cuda::Stream;
    auto& current = fake_gpu::currentStream(index);
    return reinterpret_cast<int64_t>(
        std::exchange(current, reinterpret_cast<Stream>(stream)));
  });
}
