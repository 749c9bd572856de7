//! Calls of Windows that work on open objects: opening below a directory, listing, renaming, removing.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::windows::fs::MetadataExt as _;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr;

use windows_sys::Wdk::Foundation::OBJECT_ATTRIBUTES;
use windows_sys::Wdk::Storage::FileSystem::{
    FILE_DIRECTORY_FILE, FILE_INFORMATION_CLASS, FILE_OPEN_FOR_BACKUP_INTENT, FILE_OPEN_REPARSE_POINT, FILE_SYNCHRONOUS_IO_NONALERT, NtCreateFile,
    NtSetInformationFile,
};
use windows_sys::Win32::Foundation::{ERROR_NO_MORE_FILES, HANDLE, LocalFree, NTSTATUS, OBJ_CASE_INSENSITIVE, RtlNtStatusToDosError, UNICODE_STRING};
use windows_sys::Win32::Security::Authorization::{ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1};
use windows_sys::Win32::Security::{
    DACL_SECURITY_INFORMATION, EqualSid, GetKernelObjectSecurity, GetSecurityDescriptorOwner, GetTokenInformation, IsWellKnownSid,
    OWNER_SECURITY_INFORMATION, PROTECTED_DACL_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR, SECURITY_DESCRIPTOR, SetKernelObjectSecurity, TOKEN_QUERY,
    TOKEN_USER, TokenUser, WinBuiltinAdministratorsSid, WinLocalSystemSid,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_NORMAL, FILE_ATTRIBUTE_REPARSE_POINT, FILE_ATTRIBUTE_TAG_INFO, FILE_DISPOSITION_FLAG_DELETE,
    FILE_DISPOSITION_FLAG_IGNORE_READONLY_ATTRIBUTE, FILE_DISPOSITION_FLAG_POSIX_SEMANTICS, FILE_DISPOSITION_INFO, FILE_DISPOSITION_INFO_EX,
    FILE_ID_BOTH_DIR_INFO, FILE_INFO_BY_HANDLE_CLASS, FILE_RENAME_INFO, FileAttributeTagInfo, FileDispositionInfo, FileDispositionInfoEx,
    FileIdBothDirectoryInfo, FileIdBothDirectoryRestartInfo, GetFileInformationByHandleEx, SYNCHRONIZE, SetFileInformationByHandle,
};
use windows_sys::Win32::System::IO::IO_STATUS_BLOCK;
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

/// `FileRenameInformation`, and its form with flags (Windows 10 1709).
const RENAME: FILE_INFORMATION_CLASS = 10;
const RENAME_EX: FILE_INFORMATION_CLASS = 65;
/// The name is replaced, also where somebody has the old file open.
const REPLACE: u32 = 0x1;
const POSIX: u32 = 0x2;
/// Bytes of directory entries that are read at once.
const ENTRIES: usize = 64 * 1024;

/// How an object is opened.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    pub access: u32,
    pub share: u32,
    pub disposition: u32,
    /// Beside those that every open has; with [`FILE_DIRECTORY_FILE`] it has to be a directory.
    pub options: u32,
    /// Of an object that is made.
    pub descriptor: Option<&'a Descriptor>,
}

impl How<'_> {
    pub(super) fn directory(mut self) -> Self {
        self.options |= FILE_DIRECTORY_FILE;
        self
    }
}

fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().collect()
}

fn check(status: NTSTATUS) -> io::Result<()> {
    if status >= 0 {
        return Ok(());
    }
    // SAFETY: a pure translation of a number.
    let code = unsafe { RtlNtStatusToDosError(status) };
    Err(io::Error::from_raw_os_error(code as i32))
}

fn last(done: windows_sys::core::BOOL) -> io::Result<()> {
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidFilename, "a name has more than 255 characters")
}

/// Opens one entry of an open directory. A link is opened itself, not what it leads to.
pub(super) fn open_at(dir: &File, name: &str, how: How<'_>) -> io::Result<File> {
    if name.is_empty() || name.contains(['\\', '/']) {
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, format!("{name:?} is not one name")));
    }
    let mut text = wide(name);
    let bytes = u16::try_from(size_of_val(text.as_slice())).ok().filter(|bytes| *bytes <= 510).ok_or_else(too_long)?;
    let name = UNICODE_STRING { Length: bytes, MaximumLength: bytes, Buffer: text.as_mut_ptr() };
    let attributes = OBJECT_ATTRIBUTES {
        Length: size_of::<OBJECT_ATTRIBUTES>() as u32,
        RootDirectory: dir.as_raw_handle(),
        ObjectName: &raw const name,
        Attributes: OBJ_CASE_INSENSITIVE,
        SecurityDescriptor: how.descriptor.map_or(ptr::null(), |descriptor| descriptor.0.cast::<SECURITY_DESCRIPTOR>().cast_const()),
        SecurityQualityOfService: ptr::null(),
    };
    let options = how.options | FILE_OPEN_REPARSE_POINT | FILE_SYNCHRONOUS_IO_NONALERT | FILE_OPEN_FOR_BACKUP_INTENT;
    let mut handle: HANDLE = ptr::null_mut();
    let mut block = IO_STATUS_BLOCK::default();
    // SAFETY: the attributes lead to a name and a descriptor that live until the call returns; the answer is written to owned places.
    let status = unsafe {
        NtCreateFile(
            &raw mut handle,
            how.access | SYNCHRONIZE,
            &raw const attributes,
            &raw mut block,
            ptr::null(),
            FILE_ATTRIBUTE_NORMAL,
            how.share,
            how.disposition,
            options,
            ptr::null(),
            0,
        )
    };
    check(status)?;
    // SAFETY: a good answer is a new handle that nobody else knows.
    Ok(unsafe { File::from_raw_handle(handle) })
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub attributes: u32,
    /// Of a reparse point: which kind of one.
    pub tag: u32,
}

/// What an open object is.
pub(super) fn entry(object: &File) -> io::Result<Entry> {
    let attributes = object.metadata()?.file_attributes();
    let mut info = FILE_ATTRIBUTE_TAG_INFO::default();
    if attributes & FILE_ATTRIBUTE_REPARSE_POINT != 0 {
        let size = size_of_val(&info) as u32;
        // SAFETY: the answer is written to an owned structure of the size that is told.
        last(unsafe { GetFileInformationByHandleEx(object.as_raw_handle(), FileAttributeTagInfo, (&raw mut info).cast(), size) })?;
    }
    Ok(Entry { attributes, tag: info.ReparseTag })
}

/// The names in an open directory, with what they name.
pub(super) fn list(dir: &File) -> io::Result<Vec<(String, Entry)>> {
    let mut buffer = vec![0u64; ENTRIES / 8];
    let mut names = Vec::new();
    let mut class: FILE_INFO_BY_HANDLE_CLASS = FileIdBothDirectoryRestartInfo;
    loop {
        // SAFETY: the buffer has `ENTRIES` bytes and is aligned for the entries.
        let done = unsafe { GetFileInformationByHandleEx(dir.as_raw_handle(), class, buffer.as_mut_ptr().cast(), ENTRIES as u32) };
        match last(done) {
            Err(error) if error.raw_os_error() == Some(ERROR_NO_MORE_FILES as i32) => return Ok(names),
            other => other?,
        }
        class = FileIdBothDirectoryInfo;
        let mut offset = 0;
        loop {
            // SAFETY: Windows wrote an entry at each offset that it named, aligned to eight bytes, with its name inside the buffer.
            let (next, found, name) = unsafe {
                let entry = buffer.as_ptr().cast::<u8>().add(offset).cast::<FILE_ID_BOTH_DIR_INFO>();
                let length = (*entry).FileNameLength as usize / 2;
                let name = std::slice::from_raw_parts((&raw const (*entry).FileName).cast::<u16>(), length);
                // Of reparse points the size of extended attributes is the tag (MS-FSCC 2.4.17).
                let found = Entry { attributes: (*entry).FileAttributes, tag: (*entry).EaSize };
                ((*entry).NextEntryOffset as usize, found, String::from_utf16(name))
            };
            // A name that is no text cannot be meant by any path.
            names.extend(name.ok().filter(|name| name != "." && name != "..").map(|name| (name, found)));
            if next == 0 {
                break;
            }
            offset += next;
        }
    }
}

/// Removes an open object, which was opened with the right to do so.
pub(super) fn remove(object: &File) -> io::Result<()> {
    let flags = FILE_DISPOSITION_FLAG_DELETE | FILE_DISPOSITION_FLAG_POSIX_SEMANTICS | FILE_DISPOSITION_FLAG_IGNORE_READONLY_ATTRIBUTE;
    let modern = FILE_DISPOSITION_INFO_EX { Flags: flags };
    let simple = FILE_DISPOSITION_INFO { DeleteFile: true };
    let handle = object.as_raw_handle();
    // SAFETY: each class is given its own structure and the size of it.
    unsafe {
        let size = size_of_val(&modern) as u32;
        let done = SetFileInformationByHandle(handle, FileDispositionInfoEx, (&raw const modern).cast(), size);
        // File systems without it.
        if done == 0 && io::Error::last_os_error().kind() != io::ErrorKind::DirectoryNotEmpty {
            let size = size_of_val(&simple) as u32;
            return last(SetFileInformationByHandle(handle, FileDispositionInfo, (&raw const simple).cast(), size));
        }
        last(done)
    }
}

/// Gives an open object a name in an open directory, over what has that name.
pub(super) fn rename(object: &File, dir: &File, name: &str) -> io::Result<()> {
    let text = wide(name);
    let bytes = size_of_val(text.as_slice());
    let head = std::mem::offset_of!(FILE_RENAME_INFO, FileName);
    // Windows takes no fewer bytes than the structure has, whatever the name.
    let size = (head + bytes).max(size_of::<FILE_RENAME_INFO>());
    let mut buffer = vec![0u64; size.div_ceil(8) + 1];
    let info = buffer.as_mut_ptr().cast::<FILE_RENAME_INFO>();
    // SAFETY: the buffer is larger than the structure with its name, and aligned for it.
    unsafe {
        (*info).RootDirectory = dir.as_raw_handle();
        (*info).FileNameLength = bytes as u32;
        ptr::copy_nonoverlapping(text.as_ptr(), (&raw mut (*info).FileName).cast::<u16>(), text.len());
    }
    let set = |class: FILE_INFORMATION_CLASS, flags: u32| {
        let mut block = IO_STATUS_BLOCK::default();
        // SAFETY: as above; both classes begin with the flags, of which the older one reads a byte.
        unsafe {
            (*info).Anonymous.Flags = flags;
            check(NtSetInformationFile(object.as_raw_handle(), &raw mut block, info.cast_const().cast(), size as u32, class))
        }
    };
    set(RENAME_EX, REPLACE | POSIX).or_else(|_| set(RENAME, REPLACE))
}

/// A security descriptor.
pub(super) struct Descriptor(PSECURITY_DESCRIPTOR);

impl Descriptor {
    /// Reads a descriptor in its text form.
    pub(super) fn parse(sddl: &str) -> io::Result<Self> {
        let text: Vec<u16> = sddl.encode_utf16().chain([0]).collect();
        let mut descriptor: PSECURITY_DESCRIPTOR = ptr::null_mut();
        // SAFETY: the text ends with NUL; the answer is written to an owned place.
        let done =
            unsafe { ConvertStringSecurityDescriptorToSecurityDescriptorW(text.as_ptr(), SDDL_REVISION_1, &raw mut descriptor, ptr::null_mut()) };
        last(done)?;
        Ok(Descriptor(descriptor))
    }

    /// Gives an open object the access list, and nothing that its parent has.
    pub(super) fn protect(&self, object: &File) -> io::Result<()> {
        let what = DACL_SECURITY_INFORMATION | PROTECTED_DACL_SECURITY_INFORMATION;
        // SAFETY: the descriptor is one that Windows made.
        last(unsafe { SetKernelObjectSecurity(object.as_raw_handle(), what, self.0) })
    }
}

/// Whether an open object belongs to this process's account, SYSTEM or administrators.
pub(super) fn is_ours(object: &File) -> io::Result<bool> {
    let mut buffer = [0_u64; 64];
    let (size, mut needed) = (size_of_val(&buffer) as u32, 0);
    let descriptor = buffer.as_mut_ptr().cast::<core::ffi::c_void>();
    let (mut owner, mut defaulted) = (ptr::null_mut(), 0);
    let mut token: HANDLE = ptr::null_mut();
    let mut user = [0_u64; 32];
    // SAFETY: buffers have the sizes that are told and are aligned; the SIDs lie in them and are read while they live; answers are written to
    // owned places, and the handle is owned at once.
    unsafe {
        last(GetKernelObjectSecurity(object.as_raw_handle(), OWNER_SECURITY_INFORMATION, descriptor, size, &raw mut needed))?;
        last(GetSecurityDescriptorOwner(descriptor, &raw mut owner, &raw mut defaulted))?;
        for known in [WinLocalSystemSid, WinBuiltinAdministratorsSid] {
            if IsWellKnownSid(owner, known) != 0 {
                return Ok(true);
            }
        }
        last(OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &raw mut token))?;
        let token = OwnedHandle::from_raw_handle(token);
        let size = size_of_val(&user) as u32;
        last(GetTokenInformation(token.as_raw_handle(), TokenUser, user.as_mut_ptr().cast(), size, &raw mut needed))?;
        Ok(EqualSid(owner, (*user.as_ptr().cast::<TOKEN_USER>()).User.Sid) != 0)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: Windows allocated it for us, and nobody else has it.
        unsafe { LocalFree(self.0) };
    }
}
