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

/// Gives the heap's free pages back to the kernel, those between used ones included. It takes milliseconds, so call it after large bursts
/// alone; with other allocators than glibc's it does nothing.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim takes a number alone and may be called at any time.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn free_memory_between_used_memory_goes_back() {
        let resident = || -> usize {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4
        };
        // One in eight stays, so that nothing is free at the heap's end.
        let all: Vec<Vec<u8>> = (0..8192).map(|_| vec![1; 8192]).collect();
        let kept: Vec<Vec<u8>> = all.into_iter().enumerate().filter_map(|(n, one)| (n % 8 == 7).then_some(one)).collect();
        let before = resident();
        give_back();
        let after = resident();
        assert!(after + (32 << 10) < before, "{before} KiB before, {after} KiB after");
        assert!(kept.iter().all(|one| one.iter().all(|byte| *byte == 1)), "what is used stays");
    }
}
