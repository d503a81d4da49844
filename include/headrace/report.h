// SPDX-License-Identifier: Apache-2.0
// What this machine can do for headrace, and what each engine did in a folder: every verdict comes from bytes that were
// written, read back and compared. Any thread; a call blocks until all is tried.
// Plain values that own their text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/engine_info.h>
#include <headrace/error.h>
#include <headrace/export.h>
#include <headrace/progress.h>
#include <headrace/transfer.h>

namespace headrace {

// Something that works less well than it could, and what to do about it.
struct Advice {
  std::string about;   // "locked memory", "huge pages", ...
  std::string what;    // a sentence
  std::string remedy;  // a sentence; empty when there is nothing to do
};

struct KernelFacts {
  std::string name;     // "Linux"
  std::string release;  // "6.12.9-amd64"
  std::string machine;  // "x86_64"
};

struct ProcessorFacts {
  std::string model;        // empty where the kernel does not say
  uint32_t online = 0;      // processors of the machine
  uint32_t allowed = 0;     // of these, those that this process may use
  uint32_t numa_nodes = 0;  // 0: not known
};

struct MemoryFacts {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;  // as the kernel estimates it
  uint32_t page_bytes = 0;
};

struct HugePagePool {
  uint64_t page_bytes = 0;
  uint64_t total_pages = 0;
  uint64_t free_pages = 0;
};

struct HugePageFacts {
  std::string transparent;             // "always", "madvise", "never"; empty where the kernel does not say
  std::vector<HugePagePool> reserved;  // the hugetlb pools, the smallest pages first
};

struct LockedMemoryFacts {
  std::optional<uint64_t> limit_bytes;      // RLIMIT_MEMLOCK; none: no limit
  std::optional<uint64_t> limit_max_bytes;  // what this process may raise it to; none: no limit
  bool exempt = false;                      // CAP_IPC_LOCK: the limit does not count
};

struct AioFacts {
  std::optional<uint64_t> places_max;   // fs.aio-max-nr
  std::optional<uint64_t> places_used;  // fs.aio-nr
};

// A shared library, looked for where the dynamic linker would; never opened.
struct LibraryFacts {
  std::string name;  // "libcuda.so.1"
  std::string path;  // empty: not found
};

struct GpuFacts {
  LibraryFacts cuda_driver;
  LibraryFacts cufile;
  std::string driver_version;     // of the NVIDIA kernel module; empty: it is not loaded
  std::string nvidia_fs_version;  // of the kernel module of GPUDirect Storage; empty: it is not loaded
};

// Read from /sys. Empty text and none: the kernel does not say, or a container hides it.
struct BlockDeviceFacts {
  std::string name;       // "nvme0n1"
  std::string partition;  // "nvme0n1p2" when it is a partition of the device that is used
  std::string member_of;  // the md or device-mapper device above it in this list; empty for the one that files lie on
  std::string kind;       // "nvme", "scsi", "virtio", "xen", "md", "dm", "loop", "zram", "nbd", "mmc", "other"
  std::string model;      // of a device-mapper device its name, of an md device its level
  std::string backing_file;  // of a loop device
  std::string scheduler;     // the one in use
  std::string write_cache;   // "write back", "write through"
  std::optional<uint64_t> size_bytes;
  std::optional<uint32_t> logical_sector_bytes;
  std::optional<uint32_t> physical_sector_bytes;
  std::optional<uint32_t> queue_depth;  // requests that the block layer queues: nr_requests
  std::optional<uint32_t> hardware_queues;
  std::optional<uint64_t> request_bytes_max;  // one request to the device: max_sectors_kb
  std::optional<uint32_t> request_segments_max;
  std::optional<bool> rotational;    // as the device says; virtual disks often say so and are not
  std::optional<bool> virtual_disk;  // made by a hypervisor or a cloud, or by this kernel
  std::optional<uint32_t> numa_node;
};

struct FileSystemFacts {
  std::string type;    // "ext4"
  std::string source;  // what is mounted: a device, a server and its path
  std::string mounted_at;
  std::string mount_options;  // of this mount, separated by commas: "rw,relatime"
  std::string options;        // of the file system, wherever it is mounted
  std::optional<uint64_t> size_bytes;
  std::optional<uint64_t> free_bytes;  // that this user may use
  bool in_memory = false;              // tmpfs, ramfs: nothing lies below, and nothing survives a restart
};

struct DirectFacts {
  bool accepted = false;  // opening a file with O_DIRECT; whether bytes went that way is in the routes
  bool told = false;      // the system tells its alignments (statx, or the sector); else they are a safe guess
  uint32_t memory_alignment_bytes = 0;
  uint32_t offset_alignment_bytes = 0;
};

enum class Verdict : uint8_t {
  works,      // every byte came back right, by the fastest route this engine has
  partly,     // every byte came back right, but by a slower route than it could be
  failed,     // it cannot be set up here, or bytes did not come back right
  not_tried,  // what went wrong before made it pointless
};
// "works", "partly", "failed", "not tried".
HEADRACE_EXPORT std::string_view verdict_name(Verdict verdict) noexcept;

// Where the bytes that were compared came from.
enum class ReadFrom : uint8_t {
  device,      // past the page cache, or through one from which the file had been dropped
  page_cache,  // the file could not be dropped from it: the bytes prove nothing about the device
  memory,      // there is no device
};
// "device", "page cache", "memory".
HEADRACE_EXPORT std::string_view read_from_name(ReadFrom from) noexcept;

// Random bytes written durably, read back and compared.
struct RoundTrip {
  std::string shape;  // "bulk": aligned, ordinary memory; "buffer": aligned, a Buffer; "ragged": neither aligned
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  bool bytes_right = false;
  ReadFrom read_from = ReadFrom::device;  // valid, like the routes, when the bytes are right
  Route write;
  Route read;
  std::optional<Error> error;  // why they are not right
};

struct EngineReport {
  EngineKind engine = EngineKind::automatic;
  Verdict verdict = Verdict::not_tried;
  std::string detail;  // flags that worked
  std::string why;     // why it is not better; empty when it could not be
  std::string remedy;  // what to do about that; empty when there is nothing
  std::vector<RoundTrip> round_trips;
};

struct FolderReport {
  std::string path;            // as given
  std::string real_path;       // without symbolic links; empty when it cannot be told
  std::optional<Error> error;  // why nothing was tried here; its detail says what to do
  FileSystemFacts file_system;
  DirectFacts direct;
  std::vector<BlockDeviceFacts> devices;  // the one below the file system, then what it is made of
  std::vector<EngineReport> engines;      // uring, aio, posix
  std::vector<Advice> advice;

  // Some engine brought every byte back right.
  HEADRACE_EXPORT bool usable() const noexcept;
};

struct MachineReport {
  KernelFacts kernel;
  ProcessorFacts processors;
  MemoryFacts memory;
  HugePageFacts huge_pages;
  LockedMemoryFacts locked_memory;
  std::optional<uint32_t> uring_disabled;  // kernel.io_uring_disabled: 0 allowed, 1 for some users, 2 for nobody
  AioFacts aio;
  GpuFacts gpu;                     // found or not; nothing of it is tried, because this version moves host memory only
  std::vector<EngineInfo> engines;  // each built once, with a few bytes moved in memory: flags, or why not
  std::vector<Advice> advice;
  std::vector<FolderReport> folders;  // in the order given
};

struct ReportOptions {
  // A folder whose device answers nothing for so long is given up, and says so.
  uint64_t patience_ns = 10'000'000'000;
  Progress progress = {};
};

// Looks at the machine, and tries every engine in every folder with files of at most 32 MiB in all, which have no name or lose
// it before they are written. A folder in which nothing can be tried has an `error`, and the others go on. Fails only when it
// is interrupted, or out of memory.
[[nodiscard]] HEADRACE_EXPORT Result<MachineReport> report_machine(std::span<const std::string> folders,
                                                                   const ReportOptions& options = {});

// docs/schema/report.json. Bytes of paths that are not UTF-8 come out as U+FFFD.
[[nodiscard]] HEADRACE_EXPORT std::string to_json(const MachineReport& report);

}  // namespace headrace
