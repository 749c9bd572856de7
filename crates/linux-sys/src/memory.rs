//! What a process keeps of memory that it does not need.
#![allow(unsafe_code)]

use std::ops::Range;

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

/// Gives back to the kernel what the process holds and rest does not need: the heap's free pages, those between used ones included (with
/// glibc's allocator; with others they stay), and the pages of the program's file, which come back from there when they are used again. It
/// takes milliseconds, so call it after large bursts alone.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim takes a number alone and may be called at any time.
        unsafe { libc::malloc_trim(0) };
    }
    forget_program(is_traced());
}

/// Whether a debugger may have put breakpoints into the code: they are changed pages of it, which the file does not have.
fn is_traced() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")).is_none_or(|tracer| tracer.trim() != "0")
}

/// Unmaps the pages of the program's constants and relocations, and those of its code unless that has to stay. The loader reads every
/// relocation once, 2 MB of them, and a start much code and many constants that nothing needs later.
fn forget_program(code_stays: bool) {
    for pages in segments(|flags| flags == libc::PF_R || (flags == libc::PF_R | libc::PF_X && !code_stays)) {
        // SAFETY: the range lies in a mapping of the program's file that is never writable, so that its pages are what the file has, and the
        // next access reads them again.
        unsafe { libc::madvise(pages.start as *mut libc::c_void, pages.len(), libc::MADV_DONTNEED) };
    }
}

/// Where the program's segments with such flags are mapped; whole pages. Those that may be read alone are never writable, unlike the part
/// of another that becomes read-only after relocation.
fn segments(wanted: impl Fn(u32) -> bool) -> Vec<Range<usize>> {
    // SAFETY: getauxval and sysconf take a number alone and may be called at any time.
    let (table, count, page) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM), libc::sysconf(libc::_SC_PAGESIZE)) };
    let (Ok(page), Ok(count)) = (usize::try_from(page), usize::try_from(count)) else { return Vec::new() };
    if table == 0 || page == 0 {
        return Vec::new();
    }
    // SAFETY: the kernel says that so many program headers stand there, and they stay as long as the program runs.
    let headers = unsafe { std::slice::from_raw_parts(table as *const libc::Elf64_Phdr, count) };
    // Addresses in the headers are relative to where the program was put; the headers' own address is among them.
    let Some(own) = headers.iter().find(|header| header.p_type == libc::PT_PHDR) else { return Vec::new() };
    let base = (table as usize).wrapping_sub(own.p_vaddr as usize);
    let is_wanted = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && wanted(header.p_flags);
    let pages = |header: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        start.next_multiple_of(page)..(start + header.p_filesz as usize) / page * page
    };
    headers.iter().filter(is_wanted).map(pages).filter(|pages| !pages.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one test gives back is missing in the count of another.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn alone() -> std::sync::MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Many constants, in a segment of their own kind.
    static TABLE: [u64; 1 << 17] = {
        let mut table = [0; 1 << 17];
        let mut n = 0;
        while n < table.len() {
            table[n] = n as u64;
            n += 1;
        }
        table
    };

    /// How many pages of a place the process has at hand.
    fn mapped(start: usize, length: usize) -> usize {
        use std::os::unix::fs::FileExt as _;
        const PAGE: usize = 4096;
        const PRESENT: u64 = 1 << 63;
        let mut entries = vec![0; length / PAGE * 8];
        std::fs::File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entries, (start / PAGE * 8) as u64).unwrap();
        entries.chunks_exact(8).filter(|entry| u64::from_ne_bytes((*entry).try_into().unwrap()) & PRESENT != 0).count()
    }

    #[test]
    fn constants_go_and_come_back_when_they_are_used() {
        let _alone = alone();
        let sum = || std::hint::black_box(&TABLE).iter().sum::<u64>();
        let expected = (1 << 17) * ((1 << 17) - 1) / 2;
        assert_eq!(sum(), expected);
        let table = || mapped(TABLE.as_ptr() as usize, size_of_val(&TABLE));
        let before = table();
        forget_program(true);
        let after = table();
        assert!(before >= 250 && after < 50, "{before} pages before, {after} after; {:x?} for {:p}", segments(|flags| flags == libc::PF_R), &TABLE);
        assert_eq!(sum(), expected);
    }

    #[test]
    fn code_goes_too_unless_a_debugger_looks() {
        let _alone = alone();
        let code = || segments(|flags| flags == libc::PF_R | libc::PF_X);
        let has = |code: &[Range<usize>]| code.iter().map(|pages| mapped(pages.start, pages.len())).sum::<usize>();
        let all = code();
        let whole = all.iter().map(|pages| pages.len() / 4096).sum::<usize>();
        assert!(whole > 100, "{all:x?}");
        // SAFETY: the whole segment is mapped, and read alone.
        let read = |pages: &Range<usize>| pages.clone().step_by(4096).map(|at| u64::from(unsafe { *(at as *const u8) })).sum::<u64>();
        let sum = || all.iter().map(read).sum::<u64>();
        let before = sum();
        assert_eq!(has(&all), whole);
        forget_program(true);
        assert_eq!(has(&all), whole, "breakpoints stay");
        forget_program(false);
        // The kernel maps sixteen pages where one is used, so that much of a small program is back at once.
        let after = has(&all);
        assert!(after < whole, "{after} of {whole} pages are mapped still");
        assert_eq!(sum(), before, "and comes back");
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn free_memory_between_used_memory_goes_back() {
        let _alone = alone();
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
