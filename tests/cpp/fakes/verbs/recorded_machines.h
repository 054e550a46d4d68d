#pragma once

// Places of GPUs and NICs in real machines, as published by the owners: dumps
// of NCCL's and RCCL's topology, `lspci -tv`. A line has a device's path below
// /sys/devices, the NUMA node, and the name of a NIC. The dumps name switches
// and devices; the numbers of the ports in between are made up.

namespace dlslime::testing {

// HGX H200, Xeon 8592+ with four NUMA nodes, two of the nodes shown in the
// dump: a switch joins each GPU with a NIC (NCCL's dump of 2024-10).
constexpr const char* kHgxH200 = R"(
node 0 0-23,96-119
node 1 24-47,120-143
pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0 0
pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0 0 mlx5_0
pci0000:26/0000:26:01.0/0000:27:00.0/0000:28:00.0/0000:29:00.0 0 mlx5_1
pci0000:26/0000:26:01.0/0000:27:00.0/0000:28:01.0/0000:2a:00.0 0
pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:00.0/0000:3a:00.0 0
pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:01.0/0000:3b:00.0 0 mlx5_2
pci0000:59/0000:59:01.0/0000:5a:00.0/0000:5b:00.0/0000:5c:00.0 1 mlx5_3
)";

// A virtual machine on HGX H200, without switches or NUMA nodes.
constexpr const char* kFlatVm = R"(
pci0000:00/0000:00:02.4/0000:05:00.0 -1
pci0000:00/0000:00:03.4/0000:0d:00.0 -1 mlx5_0
pci0000:00/0000:00:03.5/0000:0e:00.0 -1 mlx5_1
)";

// A virtual machine with H200s and ConnectX-7, configured with the switches of
// the host (lspci -tv, 2025-01).
constexpr const char* kSwitchedVm = R"(
pci0000:64/0000:64:00.0/0000:65:00.0/0000:66:00.0/0000:67:00.0 0 mlx5_0
pci0000:64/0000:64:00.0/0000:65:00.0/0000:66:01.0/0000:68:00.0 0
pci0000:64/0000:64:01.0/0000:69:00.0/0000:6a:00.0/0000:6b:00.0 0
pci0000:64/0000:64:01.0/0000:69:00.0/0000:6a:01.0/0000:6c:00.0 0 mlx5_1
pci0000:c8/0000:c8:00.0/0000:c9:00.0/0000:ca:00.0/0000:cb:00.0 1 mlx5_2
pci0000:c8/0000:c8:00.0/0000:c9:00.0/0000:ca:01.0/0000:cc:00.0 1
)";

// Eight accelerators behind two levels of switches, two NICs of two ports, and
// a slow NIC on no switch (RCCL's dump of 2024-05).
constexpr const char* kTwoLevels = R"(
pci0000:30/0000:30:01.1/0000:31:00.0/0000:32:00.0/0000:33:00.0/0000:34:00.0/0000:35:00.0/0000:36:00.0/0000:37:00.0 3
pci0000:30/0000:30:01.1/0000:31:00.0/0000:32:02.0/0000:40:00.0/0000:41:00.0/0000:42:00.0 3 mlx5_0
pci0000:30/0000:30:01.1/0000:31:00.0/0000:32:02.0/0000:40:00.0/0000:41:00.0/0000:42:00.1 3 mlx5_1
pci0000:30/0000:30:01.1/0000:31:00.0/0000:32:02.0/0000:40:00.0/0000:41:01.0/0000:43:00.0/0000:44:00.0/0000:45:00.0 3
pci0000:90/0000:90:01.1/0000:91:00.0 5 mlx5_2
pci0000:90/0000:90:01.1/0000:91:00.1 5 mlx5_3
pci0000:b0/0000:b0:01.1/0000:b1:00.0/0000:b2:01.0/0000:bb:00.0/0000:bc:00.0/0000:bd:00.0/0000:be:00.0/0000:bf:00.0 7
pci0000:b0/0000:b0:01.1/0000:b1:00.0/0000:b2:01.0/0000:bb:00.0/0000:bc:01.0/0000:c0:00.0 7 mlx5_4
pci0000:b0/0000:b0:01.1/0000:b1:00.0/0000:b2:01.0/0000:bb:00.0/0000:bc:01.0/0000:c0:00.1 7 mlx5_5
)";

// Azure ND H100 v5: each device has a PCI domain of its own, so only NUMA nodes
// tell distances (the image's topology file).
constexpr const char* kNdH100v5 = R"(
pci0001:00/0001:00:00.0 0
pci0009:00/0009:00:00.0 1
pci0101:00/0101:00:00.0 0 mlx5_0
pci0102:00/0102:00:00.0 0 mlx5_1
pci0105:00/0105:00:00.0 1 mlx5_4
pci0106:00/0106:00:00.0 1 mlx5_5
)";

} // namespace dlslime::testing
