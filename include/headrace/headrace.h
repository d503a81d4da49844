// SPDX-License-Identifier: Apache-2.0
// Everything a C++ user needs, in one include.
// The headers it names say what may be called from which thread,
// and who owns what.
#pragma once

#include <headrace/atomic_file.h>
#include <headrace/benchmark.h>
#include <headrace/buffer.h>
#include <headrace/checkpoint.h>
#include <headrace/checkpoint_set.h>
#include <headrace/convert.h>
#include <headrace/device.h>
#include <headrace/engine_info.h>
#include <headrace/error.h>
#include <headrace/file.h>
#include <headrace/handle.h>
#include <headrace/inspect.h>
#include <headrace/log.h>
#include <headrace/pickle.h>
#include <headrace/pickle_writer.h>
#include <headrace/profile.h>
#include <headrace/progress.h>
#include <headrace/region.h>
#include <headrace/report.h>
#include <headrace/request.h>
#include <headrace/tensor.h>
#include <headrace/transfer.h>
#include <headrace/tune.h>
#include <headrace/verify.h>
#include <headrace/version.h>
