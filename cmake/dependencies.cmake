# One interface target that carries what every room may use: libtorch, fmt (libtorch's copy) and JSON.
find_program(LAYERPRESS_CCACHE ccache)
if(LAYERPRESS_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${LAYERPRESS_CCACHE}")
endif()

set(CMAKE_CUDA_STANDARD 17)  # libtorch for CUDA would take that of C++, which CMake 3.25 does not know how to ask nvcc for
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # the one that libtorch has loaded
find_package(Torch REQUIRED)
# A toolkit with little more than nvcc lacks libraries that libtorch names for others; libtorch loads its own.
list(FILTER TORCH_LIBRARIES EXCLUDE REGEX "-NOTFOUND$")
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)
find_path(LAYERPRESS_XXHASH_INCLUDE xxhash.h REQUIRED)  # header only, private to base
find_package(OpenMP REQUIRED COMPONENTS CXX)  # without it at::parallel_for runs on one thread

# With a libtorch for CUDA our kernels for it are built, too, for what libtorch's configuration chose: the environment's
# TORCH_CUDA_ARCH_LIST, else the machine's own devices.
set(LAYERPRESS_CUDA OFF)
if(TARGET torch_cuda)
  set(LAYERPRESS_CUDA ON)
  enable_language(CUDA)
endif()

# c10d's NCCL is inside a libtorch for CUDA; its header lies beside libtorch (pip's packages) or in the system, and so do those of
# CUDA's libraries, which a toolkit that is there only for nvcc lacks. Without them, or with -DLAYERPRESS_NCCL_INCLUDE=OFF, what
# GPUs exchange goes through host memory.
set(LAYERPRESS_NCCL OFF)
if(LAYERPRESS_CUDA)
  file(GLOB LAYERPRESS_PIP_CUDA_INCLUDES "${TORCH_INSTALL_PREFIX}/../nvidia/*/include")
  find_path(LAYERPRESS_NCCL_INCLUDE nccl.h HINTS ${LAYERPRESS_PIP_CUDA_INCLUDES})
  find_path(LAYERPRESS_CUSOLVER_INCLUDE cusolverDn.h HINTS ${LAYERPRESS_PIP_CUDA_INCLUDES} ${CUDA_INCLUDE_DIRS})
  get_target_property(torch_cuda_definitions torch_cuda INTERFACE_COMPILE_DEFINITIONS)
  if(LAYERPRESS_NCCL_INCLUDE AND LAYERPRESS_CUSOLVER_INCLUDE AND "USE_C10D_NCCL" IN_LIST torch_cuda_definitions)
    set(LAYERPRESS_NCCL ON)
  endif()
  message(STATUS "NCCL: ${LAYERPRESS_NCCL}, ${LAYERPRESS_NCCL_INCLUDE}")
endif()

add_library(layerpress_dependencies INTERFACE)
target_compile_features(layerpress_dependencies INTERFACE cxx_std_20)
target_include_directories(layerpress_dependencies SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_include_directories(layerpress_dependencies INTERFACE
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:include>")
target_link_libraries(layerpress_dependencies INTERFACE
  ${TORCH_LIBRARIES} nlohmann_json::nlohmann_json Threads::Threads)
# libtorch exports parts of the C++ library that were linked into it (std::filesystem), and where they are found first, as in
# the libtorch for CUDA, they crash.
target_link_options(layerpress_dependencies INTERFACE "LINKER:--push-state,--no-as-needed" -lstdc++ "LINKER:--pop-state")
# By flag, not by target: the flag leaves the choice of libgomp to the run path, where libtorch's own copy comes first.
target_compile_options(layerpress_dependencies INTERFACE ${OpenMP_CXX_FLAGS})
target_link_options(layerpress_dependencies INTERFACE ${OpenMP_CXX_FLAGS})

# Private to our own targets: warnings, which are errors in the presets, and what watches a run when asked for. Other compilers than
# ours have other warnings, so a build without a preset only shows them.
add_library(layerpress_build_options INTERFACE)
target_compile_options(layerpress_build_options INTERFACE -Wall -Wextra -Wpedantic)
if(LAYERPRESS_SANITIZE)
  target_compile_options(layerpress_build_options INTERFACE
    -fsanitize=${LAYERPRESS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    # GCC's warnings about its own library once it is instrumented.
    -Wno-maybe-uninitialized)
  if(LAYERPRESS_SANITIZE STREQUAL "thread")
    target_compile_options(layerpress_build_options INTERFACE -Wno-tsan)
  endif()
  target_link_options(layerpress_build_options INTERFACE -fsanitize=${LAYERPRESS_SANITIZE})
endif()
if(LAYERPRESS_COVERAGE)
  target_compile_options(layerpress_build_options INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(layerpress_build_options INTERFACE --coverage)
endif()
