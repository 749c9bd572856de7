//! What the allocator keeps of memory that is free.
#![allow(unsafe_code)]

/// Has the allocator give memory back that a burst needed and rest does not: few arenas for all threads, and nothing large that is free stays.
/// For agents whose first pass over a cluster takes far more than what they keep. It is to be called before threads exist; with other
/// allocators than glibc's it does nothing.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: libc::c_int = 128 << 10;
        for (parameter, value) in [(libc::M_ARENA_MAX, 2), (libc::M_TRIM_THRESHOLD, LARGE), (libc::M_MMAP_THRESHOLD, LARGE)] {
            // SAFETY: mallopt takes numbers alone and may be called at any time.
            unsafe { libc::mallopt(parameter, value) };
        }
    }
}
