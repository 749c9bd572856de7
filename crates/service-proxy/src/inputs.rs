//! Newest rows by Service, and the set of changed Services.
//!
//! The watches of Services and EndpointSlices put their rows here and keep none themselves. There are many rows: names of namespaces stand
//! here once, and the Service of a slice is found by the slice's name.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::{Keeper, Key};

use crate::rows::{ServiceRow, SliceRow};

/// The newest rows, by Service, and which Services changed since they were last asked for.
#[derive(Debug, Default)]
pub struct Inputs {
    namespaces: BTreeMap<Box<str>, BTreeMap<Box<str>, Known>>,
    /// The Services of slices whose names do not begin with their Service's.
    elsewhere: BTreeMap<Key, Box<str>>,
    dirty: BTreeSet<Key>,
    /// The numbers of the newest lists.
    service_list: u32,
    slice_list: u32,
}

/// What is known of one Service; slices by name. Most have one, so a list is the smallest that holds them.
#[derive(Debug, Default)]
struct Known {
    service: Option<Arc<ServiceRow>>,
    slices: Vec<Slice>,
    /// The list in which the Service was last seen.
    seen: u32,
}

#[derive(Debug)]
struct Slice {
    name: Box<str>,
    row: Arc<SliceRow>,
    /// The list in which it was last seen.
    seen: u32,
}

impl Known {
    fn find(&self, slice: &str) -> Result<usize, usize> {
        self.slices.binary_search_by(|one| (*one.name).cmp(slice))
    }

    fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty()
    }
}

impl Inputs {
    /// Takes in a Service as it is now; none when it is gone or needs no proxy. Returns whether anything differs.
    pub fn service(&mut self, key: &Key, row: Option<ServiceRow>) -> bool {
        let list = self.service_list;
        let different = match row {
            Some(row) => {
                let known = self.known(key);
                known.seen = list;
                let differs = known.service.as_deref() != Some(&row);
                if differs {
                    known.service = Some(Arc::new(row));
                }
                differs
            }
            None => self.get_mut(key).is_some_and(|known| known.service.take().is_some()),
        };
        if different {
            self.touch(key);
        }
        different
    }

    /// Takes in a slice as it is now; none when it is gone or of no Service. Returns whether anything differs.
    pub fn slice(&mut self, key: &Key, row: Option<SliceRow>) -> bool {
        let (before, list) = (self.owner(key), self.slice_list);
        let Some(row) = row else { return before.is_some_and(|service| self.drop_slice(key, &service)) };
        let service = Key::new(key.ns.clone(), row.service.clone());
        // A slice may go from one Service to another.
        let moved = before.filter(|before| *before != service).is_some_and(|before| self.drop_slice(key, &before));
        if !begins_with(&key.name, &service.name) {
            self.elsewhere.insert(key.clone(), service.name.as_str().into());
        }
        let known = self.known(&service);
        let different = match known.find(&key.name) {
            Ok(at) => {
                let slice = &mut known.slices[at];
                slice.seen = list;
                let differs = *slice.row != row;
                if differs {
                    slice.row = Arc::new(row);
                }
                differs
            }
            Err(at) => {
                known.slices.reserve_exact(1);
                known.slices.insert(at, Slice { name: key.name.as_str().into(), row: Arc::new(row), seen: list });
                true
            }
        };
        if different {
            self.touch(&service);
        }
        different || moved
    }

    /// The Service under which a slice is filed. Controllers name slices after their Service, so there are few places to look at.
    fn owner(&self, slice: &Key) -> Option<Key> {
        let services = self.namespaces.get(slice.ns.as_str())?;
        let has = |service: &str| services.get(service).is_some_and(|known| known.find(&slice.name).is_ok());
        let elsewhere = self.elsewhere.get(slice).map(|service| &**service);
        let prefixes = slice.name.match_indices('-').map(|(at, _)| &slice.name[..at]);
        elsewhere.into_iter().chain(prefixes).find(|service| has(service)).map(|service| Key::new(slice.ns.clone(), service))
    }

    fn drop_slice(&mut self, slice: &Key, service: &Key) -> bool {
        self.elsewhere.remove(slice);
        let Some(known) = self.get_mut(service) else { return false };
        let Ok(at) = known.find(&slice.name) else { return false };
        known.slices.remove(at);
        self.touch(service);
        true
    }

    fn get(&self, service: &Key) -> Option<&Known> {
        self.namespaces.get(service.ns.as_str())?.get(service.name.as_str())
    }

    fn get_mut(&mut self, service: &Key) -> Option<&mut Known> {
        self.namespaces.get_mut(service.ns.as_str())?.get_mut(service.name.as_str())
    }

    /// What is known of a Service, which is made when nothing is.
    fn known(&mut self, service: &Key) -> &mut Known {
        let services = self.namespaces.entry(service.ns.as_str().into()).or_default();
        services.entry(service.name.as_str().into()).or_default()
    }

    /// A Service changed: it is looked at again, and forgotten when nothing is left of it.
    fn touch(&mut self, service: &Key) {
        self.dirty.insert(service.clone());
        let Some(services) = self.namespaces.get_mut(service.ns.as_str()) else { return };
        if services.get(service.name.as_str()).is_some_and(Known::is_empty) {
            services.remove(service.name.as_str());
            if services.is_empty() {
                self.namespaces.remove(service.ns.as_str());
            }
        }
    }

    /// Has every Service computed again, after a change of what all of them depend on.
    pub fn touch_all(&mut self) {
        let all = self.namespaces.iter().flat_map(|(ns, services)| services.iter().map(move |(name, known)| (ns, name, known)));
        self.dirty.extend(all.filter(|(.., known)| known.service.is_some()).map(|(ns, name, _)| Key::new(&**ns, &**name)));
    }

    /// The Services that changed, each once.
    pub fn take_dirty(&mut self) -> BTreeSet<Key> {
        take(&mut self.dirty)
    }

    /// The rows of one Service; none when it is gone or needs no proxy.
    pub fn rows(&self, service: &Key) -> Option<(Arc<ServiceRow>, Vec<Arc<SliceRow>>)> {
        let known = self.get(service)?;
        Some((known.service.clone()?, known.slices.iter().map(|slice| slice.row.clone()).collect()))
    }

    /// Lets go what the newest list did not bring: a part of each that `stale` takes out. Returns whether there was any.
    fn sweep(&mut self, mut stale: impl FnMut(&mut Known) -> bool) -> bool {
        let mut swept = Vec::new();
        for (ns, services) in &mut self.namespaces {
            let stale = services.iter_mut().filter_map(|(name, known)| stale(known).then(|| Key::new(&**ns, &**name)));
            swept.extend(stale);
        }
        swept.iter().for_each(|service| self.touch(service));
        !swept.is_empty()
    }

    fn end_of_services(&mut self) -> bool {
        let list = self.service_list;
        self.sweep(|known| known.seen != list && known.service.take().is_some())
    }

    fn end_of_slices(&mut self) -> bool {
        let list = self.slice_list;
        let swept = self.sweep(|known| {
            let before = known.slices.len();
            known.slices.retain(|slice| slice.seen == list);
            known.slices.len() != before
        });
        if swept {
            let mut elsewhere = take(&mut self.elsewhere);
            elsewhere.retain(|slice, service| {
                let known = self.get(&Key::new(slice.ns.clone(), &**service));
                known.is_some_and(|known| known.find(&slice.name).is_ok())
            });
            self.elsewhere = elsewhere;
        }
        swept
    }
}

/// Whether a slice's name is a Service's with a dash and more behind it.
fn begins_with(slice: &str, service: &str) -> bool {
    slice.strip_prefix(service).is_some_and(|rest| rest.starts_with('-'))
}

/// Inputs that watches fill and the loop reads.
#[derive(Clone, Debug, Default)]
pub struct SharedInputs(Arc<Mutex<Inputs>>);

impl SharedInputs {
    pub fn lock(&self) -> MutexGuard<'_, Inputs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper<ServiceRow> for SharedInputs {
    fn begin(&self) {
        let mut inputs = self.lock();
        inputs.service_list = inputs.service_list.wrapping_add(1);
    }

    fn put(&self, key: Key, row: ServiceRow) -> bool {
        self.lock().service(&key, Some(row))
    }

    fn remove(&self, key: &Key) -> bool {
        self.lock().service(key, None)
    }

    fn end(&self) -> bool {
        self.lock().end_of_services()
    }
}

impl Keeper<SliceRow> for SharedInputs {
    fn begin(&self) {
        let mut inputs = self.lock();
        inputs.slice_list = inputs.slice_list.wrapping_add(1);
    }

    fn put(&self, key: Key, row: SliceRow) -> bool {
        self.lock().slice(&key, Some(row))
    }

    fn remove(&self, key: &Key) -> bool {
        self.lock().slice(key, None)
    }

    fn end(&self) -> bool {
        self.lock().end_of_slices()
    }
}

#[cfg(test)]
mod tests;
