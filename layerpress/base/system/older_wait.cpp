// std::condition_variable::wait got a second version in the C++ library of GCC 12, which does what the first one does. What asks for the
// second one does not start beside the C++ library of GCC 11, such as that of RHEL 9, so the linker (--wrap, CMakeLists.txt) sends our
// calls here.
extern "C" {

__asm__(".symver layerpress_older_wait, _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
void layerpress_older_wait(void* variable, void* lock);

// NOLINTNEXTLINE(bugprone-reserved-identifier)
void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(void* variable, void* lock) {
  layerpress_older_wait(variable, lock);
}

}  // extern "C"
