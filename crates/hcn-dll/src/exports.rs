//! The functions of computenetwork.dll that name an object or a list, and `HNSCall` of vmcompute.dll.
//!
//! All return an HRESULT. Out strings are null unless there is something to say, and on success there is no error record, since clients
//! take any record as a failure. A nil GUID on a create lets the service choose.
#![allow(non_snake_case)]

use std::ffi::c_void;

use hcn::{Args, Function, Guid, HResult, Handle, Kind, RawError, Reply};

use crate::memory::{OutText, Text, give, read};
use crate::service::call;

/// An object that the caller opened; the number of a handle, never a pointer.
pub type RawHandle = *mut c_void;

/// A GUID as Windows lays it out.
#[repr(C)]
pub struct RawGuid {
    data1: u32,
    data2: u16,
    data3: u16,
    data4: [u8; 8],
}

impl From<&RawGuid> for Guid {
    fn from(raw: &RawGuid) -> Self {
        let bytes =
            u128::from(raw.data1) << 96 | u128::from(raw.data2) << 80 | u128::from(raw.data3) << 64 | u128::from(u64::from_be_bytes(raw.data4));
        hcn::guid::from_u128(bytes)
    }
}

#[cfg(test)]
impl From<Guid> for RawGuid {
    fn from(guid: Guid) -> Self {
        let (data1, data2, data3, data4) = guid.0.as_fields();
        Self { data1, data2, data3, data4: *data4 }
    }
}

/// A GUID of the caller; null is the nil one.
///
/// # Safety
/// `id` must be null or point to a GUID.
unsafe fn guid(id: *const RawGuid) -> Guid {
    // SAFETY: the caller vouches for it.
    unsafe { id.as_ref() }.map_or(Guid::NIL, Guid::from)
}

/// The handle's number; null is none.
pub(crate) fn number(handle: RawHandle) -> Option<Handle> {
    (!handle.is_null()).then_some(Handle(handle as usize as u64))
}

/// A handle for the caller.
fn opened(handle: Handle) -> RawHandle {
    usize::try_from(handle.0).unwrap_or_default() as RawHandle
}

/// Answers the caller: the reply into the out parameters, or the code and its record.
///
/// # Safety
/// Each out parameter must be null or writable.
unsafe fn answer(outcome: Result<Reply, RawError>, handle: *mut RawHandle, result: OutText, record: OutText) -> i32 {
    if !handle.is_null() {
        let value = outcome.as_ref().ok().and_then(|reply| reply.handle).map_or(std::ptr::null_mut(), opened);
        // SAFETY: the caller vouches for it.
        unsafe { handle.write(value) };
    }
    let (code, text, reason) = match outcome {
        Ok(reply) => (HResult::OK, reply.result, None),
        Err(RawError { hresult, record }) => {
            let plain = || RawError::with_record(hresult, &format!("{} ", hresult.message().unwrap_or("Unknown error."))).record;
            (hresult, None, record.or_else(plain))
        }
    };
    // SAFETY: the caller vouches for both.
    unsafe {
        give(result, text.as_deref());
        give(record, reason.as_deref());
    }
    code.0.cast_signed()
}

/// The six functions that every family has with the same parameters.
macro_rules! family {
    ($kind:ident: $enumerate:ident $open:ident $modify:ident $query:ident $delete:ident $close:ident) => {
        /// Lists identifiers.
        ///
        /// # Safety
        /// `query` must be null or NUL-terminated UTF-16; the others null or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "system" fn $enumerate(query: Text, list: OutText, record: OutText) -> i32 {
            // SAFETY: the caller vouches for it.
            let query = unsafe { read(query) };
            let outcome = call(Function::Enumerate(Kind::$kind), Args { query: query.as_deref(), ..Args::default() });
            // SAFETY: the caller vouches for them.
            unsafe { answer(outcome, std::ptr::null_mut(), list, record) }
        }

        /// Opens an object.
        ///
        /// # Safety
        /// `id` must be null or point to a GUID; the others null or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "system" fn $open(id: *const RawGuid, handle: *mut RawHandle, record: OutText) -> i32 {
            // SAFETY: the caller vouches for it.
            let id = Some(unsafe { guid(id) });
            let outcome = call(Function::Open(Kind::$kind), Args { id, ..Args::default() });
            // SAFETY: the caller vouches for them.
            unsafe { answer(outcome, handle, std::ptr::null_mut(), record) }
        }

        /// Modifies an open object.
        ///
        /// # Safety
        /// `settings` must be null or NUL-terminated UTF-16; `record` null or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "system" fn $modify(handle: RawHandle, settings: Text, record: OutText) -> i32 {
            // SAFETY: the caller vouches for it.
            let settings = unsafe { read(settings) };
            let args = Args { handle: number(handle), settings: settings.as_deref(), ..Args::default() };
            let outcome = call(Function::Modify(Kind::$kind), args);
            // SAFETY: the caller vouches for it.
            unsafe { answer(outcome, std::ptr::null_mut(), std::ptr::null_mut(), record) }
        }

        /// Reads an open object.
        ///
        /// # Safety
        /// `query` must be null or NUL-terminated UTF-16; the others null or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "system" fn $query(handle: RawHandle, query: Text, properties: OutText, record: OutText) -> i32 {
            // SAFETY: the caller vouches for them.
            unsafe { ask(Function::Query(Kind::$kind), handle, query, properties, record) }
        }

        /// Deletes an object.
        ///
        /// # Safety
        /// `id` must be null or point to a GUID; `record` null or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "system" fn $delete(id: *const RawGuid, record: OutText) -> i32 {
            // SAFETY: the caller vouches for it.
            let id = Some(unsafe { guid(id) });
            let outcome = call(Function::Delete(Kind::$kind), Args { id, ..Args::default() });
            // SAFETY: the caller vouches for it.
            unsafe { answer(outcome, std::ptr::null_mut(), std::ptr::null_mut(), record) }
        }

        /// Closes an open object.
        #[unsafe(no_mangle)]
        pub extern "system" fn $close(handle: RawHandle) -> i32 {
            let outcome = call(Function::Close(Kind::$kind), Args { handle: number(handle), ..Args::default() });
            outcome.map_or_else(|error| error.hresult, |_| HResult::OK).0.cast_signed()
        }
    };
}

/// The create function of a family whose objects need no other.
macro_rules! create {
    ($kind:ident: $create:ident) => {
        /// Creates and opens an object.
        ///
        /// # Safety
        /// `id` must be null or point to a GUID, `settings` null or NUL-terminated UTF-16, and the others null or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "system" fn $create(id: *const RawGuid, settings: Text, handle: *mut RawHandle, record: OutText) -> i32 {
            // SAFETY: the caller vouches for them.
            let (id, settings) = unsafe { (guid(id), read(settings)) };
            let outcome = call(Function::Create(Kind::$kind), Args { id: Some(id), settings: settings.as_deref(), ..Args::default() });
            // SAFETY: the caller vouches for them.
            unsafe { answer(outcome, handle, std::ptr::null_mut(), record) }
        }
    };
}

family!(Network: HcnEnumerateNetworks HcnOpenNetwork HcnModifyNetwork HcnQueryNetworkProperties HcnDeleteNetwork HcnCloseNetwork);
family!(Endpoint: HcnEnumerateEndpoints HcnOpenEndpoint HcnModifyEndpoint HcnQueryEndpointProperties HcnDeleteEndpoint HcnCloseEndpoint);
family!(Namespace: HcnEnumerateNamespaces HcnOpenNamespace HcnModifyNamespace HcnQueryNamespaceProperties HcnDeleteNamespace HcnCloseNamespace);
family!(LoadBalancer: HcnEnumerateLoadBalancers HcnOpenLoadBalancer HcnModifyLoadBalancer HcnQueryLoadBalancerProperties HcnDeleteLoadBalancer HcnCloseLoadBalancer);
family!(SdnRoute: HcnEnumerateSdnRoutes HcnOpenSdnRoute HcnModifySdnRoute HcnQuerySdnRouteProperties HcnDeleteSdnRoute HcnCloseSdnRoute);
family!(GuestNetworkService: HcnEnumerateGuestNetworkServices HcnOpenGuestNetworkService HcnModifyGuestNetworkService HcnQueryGuestNetworkServiceProperties HcnDeleteGuestNetworkService HcnCloseGuestNetworkService);
create!(Network: HcnCreateNetwork);
create!(Namespace: HcnCreateNamespace);
create!(LoadBalancer: HcnCreateLoadBalancer);
create!(SdnRoute: HcnCreateSdnRoute);
create!(GuestNetworkService: HcnCreateGuestNetworkService);

/// Creates and opens an endpoint of an open network.
///
/// # Safety
/// `id` must be null or point to a GUID, `settings` null or NUL-terminated UTF-16, and the others null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnCreateEndpoint(
    network: RawHandle,
    id: *const RawGuid,
    settings: Text,
    handle: *mut RawHandle,
    record: OutText,
) -> i32 {
    // SAFETY: the caller vouches for them.
    let (id, settings) = unsafe { (guid(id), read(settings)) };
    let args = Args { network: number(network), id: Some(id), settings: settings.as_deref(), ..Args::default() };
    let outcome = call(Function::Create(Kind::Endpoint), args);
    // SAFETY: the caller vouches for them.
    unsafe { answer(outcome, handle, std::ptr::null_mut(), record) }
}

/// Asks an open object for text.
///
/// # Safety
/// `query` must be null or NUL-terminated UTF-16; the others null or writable.
unsafe fn ask(function: Function, handle: RawHandle, query: Text, result: OutText, record: OutText) -> i32 {
    // SAFETY: the caller vouches for it.
    let query = unsafe { read(query) };
    let outcome = call(function, Args { handle: number(handle), query: query.as_deref(), ..Args::default() });
    // SAFETY: the caller vouches for them.
    unsafe { answer(outcome, std::ptr::null_mut(), result, record) }
}

/// Reads an endpoint's counters.
///
/// # Safety
/// `query` must be null or NUL-terminated UTF-16; the others null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnQueryEndpointStats(handle: RawHandle, query: Text, result: OutText, record: OutText) -> i32 {
    // SAFETY: the caller vouches for them.
    unsafe { ask(Function::QueryEndpointStats, handle, query, result, record) }
}

/// Reads an endpoint's addresses.
///
/// # Safety
/// `query` must be null or NUL-terminated UTF-16; the others null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnQueryEndpointAddresses(handle: RawHandle, query: Text, result: OutText, record: OutText) -> i32 {
    // SAFETY: the caller vouches for them.
    unsafe { ask(Function::QueryEndpointAddresses, handle, query, result, record) }
}

/// One request of the older interface.
///
/// # Safety
/// `method`, `path` and `body` must be null or NUL-terminated UTF-16; `response` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HNSCall(method: Text, path: Text, body: Text, response: OutText) -> i32 {
    // SAFETY: the caller vouches for them.
    let [method, path, body] = [method, path, body].map(|text| unsafe { read(text) });
    let args = Args { method: method.as_deref(), path: path.as_deref(), settings: body.as_deref(), ..Args::default() };
    let outcome = call(Function::HnsCall, args);
    // SAFETY: the caller vouches for it.
    unsafe { answer(outcome, std::ptr::null_mut(), response, std::ptr::null_mut()) }
}
