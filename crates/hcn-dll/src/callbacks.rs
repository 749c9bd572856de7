//! Service notifications: a C callback behind the port's registration.
//!
//! After `HcnUnregisterServiceCallback` has returned, the callback is not called again and none of its calls is under way, unless the
//! caller is the callback itself.
#![allow(non_snake_case)]

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use hcn::{Event, HResult, Subscription};

use crate::memory::Text;
use crate::service::service;

/// What Windows calls HCN_NOTIFICATION_CALLBACK: type, context, status, data.
pub type Callback = unsafe extern "system" fn(u32, *mut c_void, i32, Text);

/// A callback and its context, until they are unregistered.
#[derive(Clone, Copy)]
struct Target {
    callback: Callback,
    context: usize,
}

/// The registered callback, and the thread that calls it now.
struct Line {
    target: Mutex<Option<Target>>,
    calling: Mutex<Option<ThreadId>>,
}

/// What the caller holds.
struct Registration {
    line: Arc<Line>,
    subscription: Subscription,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    fn ring(&self, event: &Event) {
        let target = lock(&self.target);
        let Some(Target { callback, context }) = *target else { return };
        let data: Option<Vec<u16>> = event.data.as_ref().map(|text| text.encode_utf16().chain([0]).collect());
        let data = data.as_ref().map_or(std::ptr::null(), Vec::as_ptr);
        *lock(&self.calling) = Some(thread::current().id());
        // SAFETY: the caller of HcnRegisterServiceCallback vouches for the callback until it is unregistered, which waits for this lock.
        unsafe { callback(event.event_type, context as *mut c_void, event.status.0.cast_signed(), data) };
        *lock(&self.calling) = None;
    }
}

/// Registers a callback.
///
/// # Safety
/// `callback` must be callable with `context` from any thread until it is unregistered; `handle` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnRegisterServiceCallback(callback: Option<Callback>, context: *mut c_void, handle: *mut *mut c_void) -> i32 {
    let (Some(callback), false) = (callback, handle.is_null()) else { return HResult::INVALID_PARAMETER.0.cast_signed() };
    let line = Arc::new(Line { target: Mutex::new(Some(Target { callback, context: context as usize })), calling: Mutex::default() });
    let ears = line.clone();
    let subscribed = service().and_then(|service| service.subscribe(Arc::new(move |event| ears.ring(&event))));
    let (raw, code) = match subscribed {
        Ok(subscription) => (Box::into_raw(Box::new(Registration { line, subscription })).cast(), HResult::OK),
        Err(error) => (std::ptr::null_mut(), error.hresult),
    };
    // SAFETY: checked for null above; the caller vouches for the rest.
    unsafe { handle.write(raw) };
    code.0.cast_signed()
}

/// Ends a registration.
///
/// # Safety
/// `handle` must be null or come from [`HcnRegisterServiceCallback`] and not be ended yet.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnUnregisterServiceCallback(handle: *mut c_void) -> i32 {
    if handle.is_null() {
        return HResult::INVALID_HANDLE.0.cast_signed();
    }
    // SAFETY: made by Box::into_raw above and given back once.
    let Registration { line, subscription } = *unsafe { Box::from_raw(handle.cast::<Registration>()) };
    drop(subscription);
    // The callback itself may end its registration: it holds the lock that everybody else waits for.
    if *lock(&line.calling) != Some(thread::current().id()) {
        *lock(&line.target) = None;
    }
    HResult::OK.0.cast_signed()
}
