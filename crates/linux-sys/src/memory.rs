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

/// Gives back what only a burst needed and rest does not: free pages of the heap, and pages of the program's file, which the kernel reads
/// again when they are needed. Pages that another process of the same file uses stay. It takes milliseconds, so call it after large bursts alone.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim takes a number alone and may be called at any time.
        unsafe { libc::malloc_trim(0) };
    }
    let (Ok(program), Ok(maps)) = (std::fs::read_link("/proc/self/exe"), std::fs::read_to_string("/proc/self/maps")) else { return };
    for (address, length) in mappings_of(&program, &maps) {
        // SAFETY: the range is one mapping of this process's own program, and its content stays: MADV_PAGEOUT drops clean pages of files, and
        // moves others to swap, where there is any. A kernel before 5.4, or one that must not, refuses, which does no harm.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(address), length, libc::MADV_PAGEOUT) };
    }
}

/// Addresses and lengths of the mappings of a file that cannot be written.
fn mappings_of(file: &std::path::Path, maps: &str) -> Vec<(usize, usize)> {
    let mapping = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (range, rights, path) = (words.next()?, words.next()?, words.nth(3)?);
        let (from, to) = range.split_once('-')?;
        let (from, to) = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
        (std::path::Path::new(path) == file && rights.starts_with('r') && !rights.contains('w')).then_some((from, to - from))
    };
    maps.lines().filter_map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_be_written_of_the_program_is_given_back() {
        let maps = "5500-5600 r--p 00000000 fe:00 12   /bin/mullion\n5600-5900 r-xp 00001000 fe:00 12   /bin/mullion\n\
            5900-5a00 rw-p 00002000 fe:00 12   /bin/mullion\n5a00-5b00 rw-p 00000000 00:00 0 [heap]\n\
            7f00-7f10 r-xp 00000000 fe:00 13   /lib/libc.so.6\n";
        assert_eq!(mappings_of("/bin/mullion".as_ref(), maps), [(0x5500, 0x100), (0x5600, 0x300)]);
    }

    #[cfg(target_env = "gnu")]
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
