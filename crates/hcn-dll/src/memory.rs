//! Strings for C callers: NUL-terminated UTF-16, allocated for callers who free it with `CoTaskMemFree`.

/// A string of the caller.
pub type Text = *const u16;
/// Where the caller wants a string.
pub type OutText = *mut *mut u16;

/// Reads a string; null is none.
///
/// # Safety
/// `text` must be null or point to NUL-terminated UTF-16.
pub unsafe fn read(text: Text) -> Option<String> {
    if text.is_null() {
        return None;
    }
    let mut length = 0;
    // SAFETY: the caller vouches for the terminator; every unit before it is readable.
    while unsafe { *text.add(length) } != 0 {
        length += 1;
    }
    // SAFETY: `length` units were just read.
    Some(String::from_utf16_lossy(unsafe { std::slice::from_raw_parts(text, length) }))
}

/// Gives a string to the caller, where there is one and the caller wants it; otherwise null.
///
/// # Safety
/// `out` must be null or writable.
pub unsafe fn give(out: OutText, text: Option<&str>) {
    if out.is_null() {
        return;
    }
    let pointer = text.map_or(std::ptr::null_mut(), |text| {
        let wide: Vec<u16> = text.encode_utf16().chain([0]).collect();
        let pointer = allocate(size_of_val(wide.as_slice())).cast::<u16>();
        if !pointer.is_null() {
            // SAFETY: the allocation holds that many units and is nobody else's yet.
            unsafe { pointer.copy_from_nonoverlapping(wide.as_ptr(), wide.len()) };
        }
        pointer
    });
    // SAFETY: the caller vouches for `out`.
    unsafe { out.write(pointer) };
}

#[cfg(windows)]
fn allocate(bytes: usize) -> *mut u8 {
    // SAFETY: any size may be asked for; null is the answer when there is no memory.
    unsafe { windows_sys::Win32::System::Com::CoTaskMemAlloc(bytes) }.cast()
}

/// Where there is no `CoTaskMemFree`, callers (the tests) free with [`free`].
#[cfg(not(windows))]
fn allocate(bytes: usize) -> *mut u8 {
    let mut block = vec![0_u64; bytes.div_ceil(8) + 1].into_boxed_slice();
    block[0] = block.len() as u64;
    // SAFETY: one past the length's word is within the block.
    unsafe { Box::into_raw(block).cast::<u64>().add(1) }.cast()
}

/// Frees what [`give`] gave.
///
/// # Safety
/// `text` must be null or come from [`give`] and not be freed yet.
#[cfg(all(test, not(windows)))]
pub unsafe fn free(text: *mut u16) {
    if text.is_null() {
        return;
    }
    // SAFETY: `allocate` put the length before the text.
    let block = unsafe { text.cast::<u64>().sub(1) };
    // SAFETY: as above; the block is freed once, with the length it was made with.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(block, usize::try_from(*block).unwrap_or_default())) });
}

/// As Windows frees it.
///
/// # Safety
/// `text` must be null or come from [`give`] and not be freed yet.
#[cfg(all(test, windows))]
pub unsafe fn free(text: *mut u16) {
    // SAFETY: null, or from CoTaskMemAlloc.
    unsafe { windows_sys::Win32::System::Com::CoTaskMemFree(text.cast()) };
}
