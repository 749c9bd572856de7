//! `mullion-init.exe ORDER REPORTS`: starts a container's program, waits for it, reports its start and its 32-bit exit
//! code, and passes a stop request on to every program of the container.
//!
//! The request arrives as Ctrl-C (SIGINT to this process, which Wine turns into that) with a mark in the order file; a Ctrl-C
//! without the mark was typed at the container's terminal and is the program's own business.
#![allow(unsafe_code, reason = "starting a process with an exact command line, jobs and remote threads have no safe form in std")]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::windows::ffi::OsStrExt as _;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::process::ExitCode;
use std::sync::OnceLock;

use windows_sys::Win32::Foundation::{ERROR_INTERNAL_ERROR, HANDLE, INVALID_HANDLE_VALUE, TRUE};
use windows_sys::Win32::Security::{
    AllocateAndInitializeSid, CreateRestrictedToken, DISABLE_MAX_PRIVILEGE, FreeSid, PSID, SECURITY_NT_AUTHORITY, SID_AND_ATTRIBUTES,
    TOKEN_ALL_ACCESS,
};
use windows_sys::Win32::System::Console::{
    CTRL_C_EVENT, CTRL_SHUTDOWN_EVENT, GetStdHandle, STD_ERROR_HANDLE, STD_INPUT_HANDLE, STD_OUTPUT_HANDLE, SetConsoleCtrlHandler,
};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, PROCESSENTRY32W, Process32FirstW, Process32NextW, TH32CS_SNAPPROCESS,
};
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE, JOBOBJECT_EXTENDED_LIMIT_INFORMATION,
    JobObjectExtendedLimitInformation, SetInformationJobObject,
};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};
use windows_sys::Win32::System::SystemServices::{DOMAIN_ALIAS_RID_ADMINS, SECURITY_BUILTIN_DOMAIN_RID};
use windows_sys::Win32::System::Threading::{
    CREATE_SUSPENDED, CREATE_UNICODE_ENVIRONMENT, CreateProcessAsUserW, CreateRemoteThread, GetCurrentProcess, GetExitCodeProcess, INFINITE,
    LPTHREAD_START_ROUTINE, OpenProcess, OpenProcessToken, PROCESS_ALL_ACCESS, PROCESS_INFORMATION, ResumeThread, STARTF_USESTDHANDLES, STARTUPINFOW,
    WaitForSingleObject,
};

use super::wire::{Order, Report, STOP};

/// Where the order is, for the handler of Ctrl-C.
static ORDER: OnceLock<String> = OnceLock::new();

/// Programs of Windows itself, which are not notified of a shutdown.
const SYSTEM: &[&str] = &[
    "conhost.exe",
    "explorer.exe",
    "mullion-init.exe",
    "plugplay.exe",
    "rpcss.exe",
    "services.exe",
    "svchost.exe",
    "wineboot.exe",
    "winedevice.exe",
];

/// Runs until the program has ended.
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mullion-init: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(order_path), Some(reports_path)) = (args.next(), args.next()) else {
        return Err(io::Error::other("usage: mullion-init ORDER REPORTS (container-sim starts it)"));
    };
    let order = std::fs::read(&order_path)?;
    let order = Order::decode(&order).map_err(io::Error::other)?;
    let mut reports = File::options().write(true).open(reports_path)?;
    let _ = ORDER.set(order_path);
    // SAFETY: the handler is a function that lives as long as the program.
    unsafe { SetConsoleCtrlHandler(Some(control), TRUE) };
    let job = job()?;
    let program = match start_patiently(&order, &job) {
        Ok(program) => program,
        Err(error) => {
            let code = error.raw_os_error().and_then(|code| u32::try_from(code).ok()).unwrap_or(31);
            return reports.write_all(Report::Failed(code).encode().as_bytes());
        }
    };
    reports.write_all(Report::Started.encode().as_bytes())?;
    let mut code = 0;
    // SAFETY: the handle is a process's, open until the end of this function, and `code` outlives the call.
    let known = unsafe {
        WaitForSingleObject(program.as_raw_handle(), INFINITE);
        GetExitCodeProcess(program.as_raw_handle(), &raw mut code)
    };
    if known == 0 {
        return Err(io::Error::last_os_error());
    }
    reports.write_all(Report::Exited(code).encode().as_bytes())
}

/// A job whose end is the end of every program in it: nothing that was started here outlives this process.
fn job() -> io::Result<OwnedHandle> {
    // SAFETY: no attributes and no name; the handle is checked and then owned. The structure is plain data, for which zero
    // means "no limit", and its size is given.
    unsafe {
        let job = CreateJobObjectW(std::ptr::null(), std::ptr::null());
        if job.is_null() {
            return Err(io::Error::last_os_error());
        }
        let job = OwnedHandle::from_raw_handle(job);
        let mut limits: JOBOBJECT_EXTENDED_LIMIT_INFORMATION = std::mem::zeroed();
        limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
        let size = u32::try_from(size_of_val(&limits)).unwrap_or(0);
        if SetInformationJobObject(job.as_raw_handle(), JobObjectExtendedLimitInformation, (&raw const limits).cast(), size) == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(job)
    }
}

/// This process's own token, or one in which the group of administrators only denies and that has no privileges.
fn token(limited: bool) -> io::Result<OwnedHandle> {
    // SAFETY: every pointer leads to data of the call's type that outlives it; handles are checked and then owned; the SID
    // is freed once.
    unsafe {
        let mut token: HANDLE = std::ptr::null_mut();
        if OpenProcessToken(GetCurrentProcess(), TOKEN_ALL_ACCESS, &raw mut token) == 0 {
            return Err(io::Error::last_os_error());
        }
        let token = OwnedHandle::from_raw_handle(token);
        if !limited {
            return Ok(token);
        }
        let mut administrators: PSID = std::ptr::null_mut();
        let (domain, group) = (SECURITY_BUILTIN_DOMAIN_RID.cast_unsigned(), DOMAIN_ALIAS_RID_ADMINS.cast_unsigned());
        if AllocateAndInitializeSid(&SECURITY_NT_AUTHORITY, 2, domain, group, 0, 0, 0, 0, 0, 0, &raw mut administrators) == 0 {
            return Err(io::Error::last_os_error());
        }
        let disabled = SID_AND_ATTRIBUTES { Sid: administrators, Attributes: 0 };
        let mut made: HANDLE = std::ptr::null_mut();
        let restricted = CreateRestrictedToken(
            token.as_raw_handle(),
            DISABLE_MAX_PRIVILEGE,
            1,
            &raw const disabled,
            0,
            std::ptr::null(),
            0,
            std::ptr::null(),
            &raw mut made,
        );
        let error = io::Error::last_os_error();
        FreeSid(administrators);
        if restricted == 0 { Err(error) } else { Ok(OwnedHandle::from_raw_handle(made)) }
    }
}

/// Starts the program. Wine says "internal error" when a new process ended before it was set up. That was seen once in some 400 starts, its
/// cause is not known; nothing of the program has run then, and it is started again.
fn start_patiently(order: &Order, job: &OwnedHandle) -> io::Result<OwnedHandle> {
    let is_unlucky = |error: &io::Error| error.raw_os_error().and_then(|code| u32::try_from(code).ok()) == Some(ERROR_INTERNAL_ERROR);
    for _ in 0..2 {
        match start(order, job) {
            Err(error) if is_unlucky(&error) => {}
            other => return other,
        }
    }
    start(order, job)
}

/// Starts the program in the job, on this process's own standard streams.
fn start(order: &Order, job: &OwnedHandle) -> io::Result<OwnedHandle> {
    // A program that is named without a path is looked for in this process's directory and Path.
    std::env::set_current_dir(&order.cwd)?;
    if let Some((_, path)) = order.env.iter().find(|(name, _)| name.eq_ignore_ascii_case("path")) {
        // SAFETY: this process has one thread of its own; the handler of Ctrl-C reads no variables.
        unsafe { std::env::set_var("PATH", path) };
    }
    let mut command_line = wide(&order.command_line);
    let cwd = wide(&order.cwd);
    let mut environment: Vec<u16> = order.env.iter().flat_map(|(name, value)| wide(&format!("{name}={value}"))).collect();
    // An empty block still ends twice.
    environment.extend([0, 0]);
    let token = token(order.limited)?;
    // SAFETY: every pointer leads to data that outlives the call: texts that end with NUL, a block that ends with two, and
    // structures of their own types. The handles that come back are owned at once.
    unsafe {
        let mut startup: STARTUPINFOW = std::mem::zeroed();
        startup.cb = u32::try_from(size_of_val(&startup)).unwrap_or(0);
        startup.dwFlags = STARTF_USESTDHANDLES;
        startup.hStdInput = GetStdHandle(STD_INPUT_HANDLE);
        startup.hStdOutput = GetStdHandle(STD_OUTPUT_HANDLE);
        startup.hStdError = GetStdHandle(STD_ERROR_HANDLE);
        let mut started: PROCESS_INFORMATION = std::mem::zeroed();
        let made = CreateProcessAsUserW(
            token.as_raw_handle(),
            std::ptr::null(),
            command_line.as_mut_ptr(),
            std::ptr::null(),
            std::ptr::null(),
            TRUE,
            CREATE_UNICODE_ENVIRONMENT | CREATE_SUSPENDED,
            environment.as_ptr().cast(),
            cwd.as_ptr(),
            &raw const startup,
            &raw mut started,
        );
        if made == 0 {
            return Err(io::Error::last_os_error());
        }
        let process = OwnedHandle::from_raw_handle(started.hProcess);
        let thread = OwnedHandle::from_raw_handle(started.hThread);
        if AssignProcessToJobObject(job.as_raw_handle(), process.as_raw_handle()) == 0 {
            return Err(io::Error::last_os_error());
        }
        ResumeThread(thread.as_raw_handle());
        Ok(process)
    }
}

fn wide(text: &str) -> Vec<u16> {
    OsStr::new(text).encode_wide().chain([0]).collect()
}

/// Called by the system, in a thread of its own.
extern "system" fn control(event: u32) -> windows_sys::core::BOOL {
    if event == CTRL_C_EVENT && ORDER.get().and_then(|path| std::fs::read(path).ok()).is_some_and(|order| order.first() == Some(&STOP)) {
        shut_down();
    }
    // Never this process itself.
    TRUE
}

/// Notifies every program of the container that the system shuts down.
///
/// Windows has no call for that: its console host does it. A control event is a thread that runs `CtrlRoutine`, which calls
/// the handlers that the program has set, or ends it.
fn shut_down() {
    let name = wide("kernelbase.dll");
    // SAFETY: both names end with NUL, and this library stays loaded for as long as the process lives.
    let routine = unsafe { GetProcAddress(GetModuleHandleW(name.as_ptr()), c"CtrlRoutine".as_ptr().cast()) };
    // SAFETY: `CtrlRoutine` takes one pointer-sized argument and returns a number, as routines of threads do.
    let routine: LPTHREAD_START_ROUTINE = unsafe { std::mem::transmute(routine) };
    for id in programs() {
        // SAFETY: the handle is checked. The library lies at the same address in every process of a session, and the routine
        // takes its argument, the event's number, by value.
        unsafe {
            let process = OpenProcess(PROCESS_ALL_ACCESS, 0, id);
            if process.is_null() {
                continue; // has ended meanwhile
            }
            let process = OwnedHandle::from_raw_handle(process);
            let event = CTRL_SHUTDOWN_EVENT as usize as *const core::ffi::c_void;
            let thread = CreateRemoteThread(process.as_raw_handle(), std::ptr::null(), 0, routine, event, 0, std::ptr::null_mut());
            if !thread.is_null() {
                drop(OwnedHandle::from_raw_handle(thread));
            }
        }
    }
}

/// Ids of the container's programs.
fn programs() -> Vec<u32> {
    let mut ids = Vec::new();
    // SAFETY: the snapshot is checked and then owned; the entry says its own size, as the calls demand, and outlives them.
    unsafe {
        let snapshot: HANDLE = CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0);
        if snapshot == INVALID_HANDLE_VALUE {
            return ids;
        }
        let snapshot = OwnedHandle::from_raw_handle(snapshot);
        let mut entry: PROCESSENTRY32W = std::mem::zeroed();
        entry.dwSize = u32::try_from(size_of_val(&entry)).unwrap_or(0);
        let mut more = Process32FirstW(snapshot.as_raw_handle(), &raw mut entry);
        while more != 0 {
            let length = entry.szExeFile.iter().position(|unit| *unit == 0).unwrap_or(entry.szExeFile.len());
            let name = String::from_utf16_lossy(&entry.szExeFile[..length]).to_lowercase();
            let name = name.rsplit('\\').next().unwrap_or_default();
            if entry.th32ProcessID != 0 && !SYSTEM.contains(&name) {
                ids.push(entry.th32ProcessID);
            }
            more = Process32NextW(snapshot.as_raw_handle(), &raw mut entry);
        }
    }
    ids
}
