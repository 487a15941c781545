// MUSTER_HOST_DEVICE: marks functions that nvcc compiles for both the host and the device.
#pragma once

#ifdef __CUDACC__
#define MUSTER_HOST_DEVICE __host__ __device__
#else
#define MUSTER_HOST_DEVICE
#endif
