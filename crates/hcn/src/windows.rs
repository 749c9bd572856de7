//! The port over computenetwork.dll (and vmcompute.dll's `HNSCall`); no other module calls them.
//!
//! Both are loaded from system32 at run time, and each export when it is first needed: the DLL is absent or partial before Windows Server 2019.
//! Strings and handles that the DLL gives are owned here and freed once.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use windows_sys::Win32::Foundation::{FreeLibrary, GetLastError, HMODULE};
use windows_sys::Win32::System::Com::CoTaskMemFree;
use windows_sys::Win32::System::LibraryLoader::{GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW};
use windows_sys::core::GUID;

use crate::error::{HResult, HcnError};
use crate::guid::Guid;
use crate::handles::Handles;
use crate::port::{Args, Event, EventSink, Function, Handle, HostNetwork, Kind, RawError, Reply, Subscription};

type Text = *const u16;
type OutText = *mut *mut u16;
type RawHandle = *mut c_void;
type EnumerateFn = unsafe extern "system" fn(Text, OutText, OutText) -> i32;
type CreateFn = unsafe extern "system" fn(*const GUID, Text, *mut RawHandle, OutText) -> i32;
type CreateEndpointFn = unsafe extern "system" fn(RawHandle, *const GUID, Text, *mut RawHandle, OutText) -> i32;
type OpenFn = unsafe extern "system" fn(*const GUID, *mut RawHandle, OutText) -> i32;
type ModifyFn = unsafe extern "system" fn(RawHandle, Text, OutText) -> i32;
type QueryFn = unsafe extern "system" fn(RawHandle, Text, OutText, OutText) -> i32;
type DeleteFn = unsafe extern "system" fn(*const GUID, OutText) -> i32;
type CloseFn = unsafe extern "system" fn(RawHandle) -> i32;
type HnsCallFn = unsafe extern "system" fn(Text, Text, Text, OutText) -> i32;
type CallbackFn = unsafe extern "system" fn(u32, *mut c_void, i32, Text);
type RegisterFn = unsafe extern "system" fn(CallbackFn, *mut c_void, *mut RawHandle) -> i32;
type UnregisterFn = unsafe extern "system" fn(RawHandle) -> i32;

/// A loaded library; freed on drop.
struct Library(HMODULE);

// SAFETY: a module handle is a process-wide value; the loader's functions may be called with it from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    fn load(name: &str) -> Result<Self, u32> {
        let wide = wide(name);
        // SAFETY: `wide` is NUL-terminated and outlives the call; the reserved handle is null as documented.
        let module = unsafe { LoadLibraryExW(wide.as_ptr(), std::ptr::null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32) };
        if module.is_null() {
            // SAFETY: reads the calling thread's last error.
            return Err(unsafe { GetLastError() });
        }
        Ok(Self(module))
    }

    /// The export of that name as a function of type `F`.
    ///
    /// # Safety
    /// `F` must be the function-pointer type of that export.
    unsafe fn export<F: Copy>(&self, name: &str) -> Result<F, RawError> {
        assert_eq!(size_of::<F>(), size_of::<usize>(), "an export is one pointer");
        let ascii = format!("{name}\0");
        // SAFETY: `ascii` is NUL-terminated and outlives the call; the module is loaded.
        let address = unsafe { GetProcAddress(self.0, ascii.as_ptr()) };
        let missing = || RawError::with_record(HResult::PROC_NOT_FOUND, &format!("this Windows has no {name}: update the host"));
        let address = address.ok_or_else(missing)?;
        // SAFETY: both are one code pointer; the caller vouches for the signature.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the module was loaded by us and no export outlives `self`.
        unsafe { FreeLibrary(self.0) };
    }
}

fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// A string that the DLL allocated; freed on drop.
struct ComText(*mut u16);

impl ComText {
    const fn empty() -> Self {
        Self(std::ptr::null_mut())
    }

    fn read(&self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: a non-null out string of the DLL is NUL-terminated UTF-16 and ours until freed.
        Some(unsafe { read_wide(self.0) })
    }
}

impl Drop for ComText {
    fn drop(&mut self) {
        // SAFETY: null, or allocated by the DLL with CoTaskMemAlloc and not freed elsewhere.
        unsafe { CoTaskMemFree(self.0.cast()) };
    }
}

/// Reads NUL-terminated UTF-16.
///
/// # Safety
/// `text` must point to NUL-terminated UTF-16.
unsafe fn read_wide(text: Text) -> String {
    let mut length = 0;
    // SAFETY: the caller vouches for the terminator; every unit before it is readable.
    while unsafe { *text.add(length) } != 0 {
        length += 1;
    }
    // SAFETY: `length` units were just read.
    String::from_utf16_lossy(unsafe { std::slice::from_raw_parts(text, length) })
}

/// The real Host Networking Service.
pub struct ComputeNetwork {
    network: Arc<Library>,
    vmcompute: Option<Library>,
    handles: Handles<OpenHandle>,
}

/// An open handle of the DLL; closed once, on drop at the latest.
struct OpenHandle {
    library: Arc<Library>,
    kind: Kind,
    /// A `RawHandle`, or zero once it is closed.
    raw: usize,
}

impl OpenHandle {
    const fn raw(&self) -> RawHandle {
        self.raw as RawHandle
    }

    fn close(&mut self) -> Result<(), RawError> {
        // SAFETY: every HcnCloseX has this signature.
        let function = unsafe { self.library.export::<CloseFn>(&Function::Close(self.kind).to_string())? };
        let raw = std::mem::take(&mut self.raw);
        // SAFETY: `raw` is an open handle of this library; nobody else has it, and this value forgot it.
        let code = unsafe { function(raw as RawHandle) };
        check(code, &ComText::empty())
    }
}

impl Drop for OpenHandle {
    fn drop(&mut self) {
        if self.raw != 0 {
            // A close that fails leaves nothing to be done.
            drop(self.close());
        }
    }
}

impl ComputeNetwork {
    /// Loads computenetwork.dll. Its absence says what to install.
    pub fn load() -> Result<Self, HcnError> {
        let network = Library::load("computenetwork.dll").map_err(|code| {
            HcnError::Unavailable(format!(
                "computenetwork.dll cannot be loaded (Win32 error {code}): install the Containers feature \
                 (Install-WindowsFeature Containers) on Windows Server 2019 or newer and restart, or set MULLION_HCN to a simulator's address"
            ))
        })?;
        // The library came before its functions: Windows 10 1803 and Windows Server 2019 without updates have a part of them.
        for needed in ["HcnEnumerateNetworks", "HcnCreateLoadBalancer", "HcnModifyNamespace"] {
            // SAFETY: only looked for, never called.
            if unsafe { network.export::<EnumerateFn>(needed) }.is_err() {
                return Err(HcnError::Unavailable(format!(
                    "this Windows's computenetwork.dll has no {needed}: update it (Windows Server 2019 with updates is the first to have it all)"
                )));
            }
        }
        Ok(Self { network: Arc::new(network), vmcompute: Library::load("vmcompute.dll").ok(), handles: Handles::default() })
    }

    fn keep(&self, kind: Kind, raw: RawHandle) -> Handle {
        self.handles.keep(kind, OpenHandle { library: self.network.clone(), kind, raw: raw as usize })
    }

    fn create(&self, kind: Kind, args: Args<'_>) -> Result<Reply, RawError> {
        let name = Function::Create(kind).to_string();
        let id = guid(args.id.unwrap_or_default());
        let settings = wide(args.settings.unwrap_or_default());
        let mut raw: RawHandle = std::ptr::null_mut();
        let mut record = ComText::empty();
        let code = if kind == Kind::Endpoint {
            let network = self.handles.get(Kind::Network, args.network)?;
            // SAFETY: the signature is HcnCreateEndpoint's.
            let function = unsafe { self.network.export::<CreateEndpointFn>(&name)? };
            // SAFETY: every pointer lives through the call; `network` keeps its handle open until the call returns.
            unsafe { function(network.raw(), &raw const id, settings.as_ptr(), &raw mut raw, &raw mut record.0) }
        } else {
            // SAFETY: the signature is that of HcnCreateNetwork, -Namespace, -LoadBalancer, -SdnRoute and -GuestNetworkService.
            let function = unsafe { self.network.export::<CreateFn>(&name)? };
            // SAFETY: every pointer lives through the call.
            unsafe { function(&raw const id, settings.as_ptr(), &raw mut raw, &raw mut record.0) }
        };
        check(code, &record)?;
        Ok(Reply::handle(self.keep(kind, raw)))
    }

    fn open(&self, kind: Kind, args: Args<'_>) -> Result<Reply, RawError> {
        let id = guid(args.id.unwrap_or_default());
        let mut raw: RawHandle = std::ptr::null_mut();
        let mut record = ComText::empty();
        // SAFETY: every HcnOpenX has this signature.
        let function = unsafe { self.network.export::<OpenFn>(&Function::Open(kind).to_string())? };
        // SAFETY: every pointer lives through the call.
        let code = unsafe { function(&raw const id, &raw mut raw, &raw mut record.0) };
        check(code, &record)?;
        Ok(Reply::handle(self.keep(kind, raw)))
    }

    fn query(&self, name: &str, kind: Kind, args: Args<'_>) -> Result<Reply, RawError> {
        let open = self.handles.get(kind, args.handle)?;
        let query = wide(args.query.unwrap_or_default());
        let (mut result, mut record) = (ComText::empty(), ComText::empty());
        // SAFETY: HcnQueryXProperties, HcnQueryEndpointStats and HcnQueryEndpointAddresses have this signature.
        let function = unsafe { self.network.export::<QueryFn>(name)? };
        // SAFETY: every pointer lives through the call; `open` keeps the handle open until the call returns.
        let code = unsafe { function(open.raw(), query.as_ptr(), &raw mut result.0, &raw mut record.0) };
        check(code, &record)?;
        Ok(Reply { handle: None, result: result.read() })
    }

    fn close(&self, kind: Kind, args: Args<'_>) -> Result<Reply, RawError> {
        if let Some(mut open) = self.handles.take(kind, args.handle)? {
            open.close()?;
        }
        Ok(Reply::default())
    }

    fn hns_call(&self, args: Args<'_>) -> Result<Reply, RawError> {
        let library = self.vmcompute.as_ref().ok_or_else(|| RawError::with_record(HResult::MODULE_NOT_FOUND, "vmcompute.dll cannot be loaded"))?;
        let [method, path, body] = [args.method, args.path, args.settings].map(|text| wide(text.unwrap_or_default()));
        let mut response = ComText::empty();
        // SAFETY: the signature is HNSCall's.
        let function = unsafe { library.export::<HnsCallFn>("HNSCall")? };
        // SAFETY: every pointer lives through the call.
        let code = unsafe { function(method.as_ptr(), path.as_ptr(), body.as_ptr(), &raw mut response.0) };
        check(code, &ComText::empty())?;
        Ok(Reply { handle: None, result: response.read() })
    }
}

/// Success, or the code with its record. hnslib takes any record as a failure, even beside S_OK; so do we.
fn check(code: i32, record: &ComText) -> Result<(), RawError> {
    let record = record.read().filter(|text| !text.is_empty());
    match (code, record) {
        (code, None) if code >= 0 => Ok(()),
        (code, record) if code < 0 => Err(RawError { hresult: HResult(code.cast_unsigned()), record }),
        (_, record) => Err(RawError { hresult: HResult::FAIL, record }),
    }
}

fn guid(id: Guid) -> GUID {
    let (data1, data2, data3, data4) = id.0.as_fields();
    GUID { data1, data2, data3, data4: *data4 }
}

impl HostNetwork for ComputeNetwork {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        match function {
            Function::Enumerate(_) => {
                let query = wide(args.query.unwrap_or_default());
                let (mut list, mut record) = (ComText::empty(), ComText::empty());
                // SAFETY: every HcnEnumerateXs has this signature.
                let export = unsafe { self.network.export::<EnumerateFn>(&function.to_string())? };
                // SAFETY: every pointer lives through the call.
                let code = unsafe { export(query.as_ptr(), &raw mut list.0, &raw mut record.0) };
                check(code, &record)?;
                Ok(Reply { handle: None, result: list.read() })
            }
            Function::Create(kind) => self.create(kind, args),
            Function::Open(kind) => self.open(kind, args),
            Function::Query(kind) => self.query(&function.to_string(), kind, args),
            Function::QueryEndpointStats | Function::QueryEndpointAddresses => self.query(&function.to_string(), Kind::Endpoint, args),
            Function::Close(kind) => self.close(kind, args),
            Function::Modify(kind) => {
                let open = self.handles.get(kind, args.handle)?;
                let settings = wide(args.settings.unwrap_or_default());
                let mut record = ComText::empty();
                // SAFETY: every HcnModifyX has this signature.
                let export = unsafe { self.network.export::<ModifyFn>(&function.to_string())? };
                // SAFETY: every pointer lives through the call; `open` keeps the handle open until the call returns.
                let code = unsafe { export(open.raw(), settings.as_ptr(), &raw mut record.0) };
                check(code, &record).map(|()| Reply::default())
            }
            Function::Delete(_) => {
                let id = guid(args.id.unwrap_or_default());
                let mut record = ComText::empty();
                // SAFETY: every HcnDeleteX has this signature.
                let export = unsafe { self.network.export::<DeleteFn>(&function.to_string())? };
                // SAFETY: every pointer lives through the call.
                let code = unsafe { export(&raw const id, &raw mut record.0) };
                check(code, &record).map(|()| Reply::default())
            }
            Function::HnsCall => self.hns_call(args),
        }
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        // SAFETY: the signature is HcnRegisterServiceCallback's.
        let register = unsafe { self.network.export::<RegisterFn>("HcnRegisterServiceCallback")? };
        let context = {
            let mut sinks = SINKS.lock().unwrap_or_else(PoisonError::into_inner);
            sinks.last += 1;
            let context = sinks.last;
            sinks.live.insert(context, sink);
            context
        };
        let mut raw: RawHandle = std::ptr::null_mut();
        // SAFETY: `notify` has the callback's signature; its context is a number, never dereferenced.
        let code = unsafe { register(notify, context as *mut c_void, &raw mut raw) };
        let registration = Registration { library: self.network.clone(), raw: raw as usize, context };
        check(code, &ComText::empty())?;
        Ok(Subscription::new(registration))
    }
}

/// Listeners by the number that is the callback's context: a callback that comes after its registration ended finds none, whatever
/// the DLL promises about that.
struct Sinks {
    last: usize,
    live: BTreeMap<usize, EventSink>,
}

static SINKS: Mutex<Sinks> = Mutex::new(Sinks { last: 0, live: BTreeMap::new() });

/// Passes a notification on; runs on a thread of the DLL.
unsafe extern "system" fn notify(event_type: u32, context: *mut c_void, status: i32, data: Text) {
    let sink = SINKS.lock().unwrap_or_else(PoisonError::into_inner).live.get(&(context as usize)).cloned();
    let Some(sink) = sink else { return };
    // SAFETY: the data is NUL-terminated UTF-16 during the call, or null.
    let data = (!data.is_null()).then(|| unsafe { read_wide(data) });
    sink(Event { event_type, status: HResult(status.cast_unsigned()), data });
}

/// A live callback; unregistered on drop.
struct Registration {
    library: Arc<Library>,
    raw: usize,
    context: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        SINKS.lock().unwrap_or_else(PoisonError::into_inner).live.remove(&self.context);
        if self.raw != 0 {
            // SAFETY: the signature is HcnUnregisterServiceCallback's.
            let unregister = unsafe { self.library.export::<UnregisterFn>("HcnUnregisterServiceCallback") };
            let Ok(unregister) = unregister else { return };
            // SAFETY: `raw` is our registration and is ended once.
            unsafe { unregister(self.raw as RawHandle) };
        }
    }
}
