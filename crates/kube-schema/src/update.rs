//! Who owns what after a write (structured-merge-diff merge): updates take what they change, applies merge, prune and find conflicts.

use crate::conflict::{Conflict, Conflicts};
use crate::managed::{ManagerId, Owned};
use crate::schema::Type;
use crate::set::FieldSet;
use crate::typed::{Comparison, Duplicates};
use crate::value::equal;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Brings an object into another version: the type there and the object; none when the version does not exist (any more).
pub type Convert<'a, 'f> = dyn Fn(&Value, &str) -> Result<Option<(Type<'a>, Value)>, String> + 'f;

/// The fields that writes never own, by version.
pub type Reset<'f> = dyn Fn(&str) -> ResetFields + 'f;

/// The fields that a write of a part cannot change, and so does not own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResetFields {
    /// These, and what is below them.
    These(FieldSet),
    /// All but what lies on these paths of field names and below them; `*` is any step.
    AllBut(&'static [&'static [&'static str]]),
}

impl ResetFields {
    /// What a writer may own of a set.
    pub(crate) fn keep(&self, set: FieldSet) -> FieldSet {
        match self {
            ResetFields::These(reset) if reset.is_empty() => set,
            ResetFields::These(reset) => set.recursive_difference(reset),
            ResetFields::AllBut(paths) => set.on_paths(paths),
        }
    }
}

pub(crate) type Managers = BTreeMap<ManagerId, Owned>;

#[derive(Debug)]
pub(crate) enum UpdateError {
    Conflicts(Conflicts),
    Other(String),
}

/// A valid object in a version.
#[derive(Clone)]
pub(crate) struct Versioned<'v, 's> {
    pub of: Type<'s>,
    pub version: &'v str,
    pub value: Cow<'v, Value>,
}

impl Versioned<'_, '_> {
    fn set(&self) -> FieldSet {
        self.of.field_set(&self.value).with_named_fields(self.of.schema, Some(self.of.at))
    }
}

pub(crate) struct Updater<'a, 'f> {
    pub convert: &'f Convert<'a, 'f>,
    pub reset: &'f Reset<'f>,
}

impl<'a> Updater<'a, '_> {
    fn at<'v>(&self, object: &'v Versioned<'_, 'a>, version: &'v str) -> Result<Option<Versioned<'v, 'a>>, UpdateError> {
        if object.version == version {
            return Ok(Some(Versioned { of: object.of, version, value: Cow::Borrowed(&object.value) }));
        }
        let Some((of, value)) = (self.convert)(&object.value, version).map_err(UpdateError::Other)? else { return Ok(None) };
        of.validate(&value, Duplicates::Allowed).map_err(|error| UpdateError::Other(error.to_string()))?;
        Ok(Some(Versioned { of, version, value: Cow::Owned(value) }))
    }

    /// The managers in line with today's schemas; those of versions that are gone are dropped.
    fn reconciled(&self, live: &Versioned<'_, 'a>, managers: Managers) -> Result<Managers, UpdateError> {
        let mut result = Managers::new();
        let mut types: BTreeMap<String, Option<Type<'a>>> = BTreeMap::new();
        for (id, mut owned) in managers {
            let of = match types.get(&owned.api_version) {
                Some(found) => *found,
                None => {
                    let found = self.at(live, &owned.api_version)?.map(|object| object.of);
                    types.insert(owned.api_version.clone(), found);
                    found
                }
            };
            let Some(of) = of else { continue };
            if let Some(set) = of.reconcile(&owned.set) {
                owned.set = set;
            }
            result.insert(id, owned);
        }
        Ok(result)
    }

    /// Takes from all other managers what the write changes or removes. Changed fields that others own are conflicts unless `force`.
    fn take(
        &self,
        old: &Versioned<'_, 'a>,
        new: &Versioned<'_, 'a>,
        mut managers: Managers,
        writer: &ManagerId,
        force: bool,
    ) -> Result<(Managers, Comparison), UpdateError> {
        let own = old.of.compare(&old.value, &new.value).kept_by(&(self.reset)(new.version));
        let changed = |compared: Comparison| (compared.modified.union(&compared.added), compared);
        let mut versions: BTreeMap<String, Option<(FieldSet, Comparison)>> = BTreeMap::from([(new.version.to_string(), Some(changed(own)))]);
        let mut conflicts = Vec::new();
        for (id, owned) in managers.iter_mut().filter(|(id, _)| *id != writer) {
            if !versions.contains_key(&owned.api_version) {
                let compared = match (self.at(old, &owned.api_version)?, self.at(new, &owned.api_version)?) {
                    (Some(old), Some(new)) => Some(changed(old.of.compare(&old.value, &new.value).kept_by(&(self.reset)(&owned.api_version)))),
                    _ => None,
                };
                versions.insert(owned.api_version.clone(), compared);
            }
            let Some(Some((changed, compared))) = versions.get(&owned.api_version) else {
                owned.set = FieldSet::default();
                continue;
            };
            let taken = owned.set.intersection(changed);
            if !force {
                conflicts.extend(taken.paths().into_iter().map(|path| Conflict { manager: id.clone(), path }));
            }
            for gone in [&taken, &compared.removed].into_iter().filter(|gone| !gone.is_empty()) {
                owned.set = owned.set.difference(gone);
            }
        }
        if !conflicts.is_empty() {
            return Err(UpdateError::Conflicts(Conflicts(conflicts)));
        }
        managers.retain(|_, owned| !owned.set.is_empty());
        Ok((managers, versions.remove(new.version).flatten().unwrap_or_default().1))
    }

    /// The managers after a write that is no apply.
    pub fn update(&self, live: &Versioned<'_, 'a>, new: &Versioned<'_, 'a>, managers: Managers, writer: &ManagerId) -> Result<Managers, UpdateError> {
        let managers = self.reconciled(live, managers)?;
        let (mut managers, compared) = self.take(live, new, managers, writer, true)?;
        let before = managers.remove(writer).map(|owned| owned.set).unwrap_or_default();
        let set = before.difference(&compared.removed).union(&compared.modified).union(&compared.added);
        let set = (self.reset)(new.version).keep(set);
        if !set.is_empty() {
            managers.insert(writer.clone(), Owned { set, api_version: new.version.into(), applied: false });
        }
        Ok(managers)
    }

    /// The object and the managers after an apply; no object when it changes nothing.
    pub fn apply(
        &self,
        live: &Versioned<'_, 'a>,
        config: &Versioned<'_, 'a>,
        managers: Managers,
        applier: &ManagerId,
        force: bool,
    ) -> Result<(Option<Value>, Managers), UpdateError> {
        let mut managers = self.reconciled(live, managers)?;
        let merged = Versioned { value: Cow::Owned(live.of.merge(&live.value, &config.value)), ..live.clone() };
        let set = (self.reset)(config.version).keep(config.of.field_set(&config.value));
        let last = managers.insert(applier.clone(), Owned { set, api_version: config.version.into(), applied: true });
        let last = last.filter(|last| !last.set.is_empty());
        let new = match &last {
            Some(last) => self.prune(&merged, &managers, config.version, last)?,
            None => merged.clone(),
        };
        let (managers, _) = self.take(live, &new, managers, applier, force)?;
        let value = (!equal(&live.value, &new.value)).then(|| new.value.into_owned());
        Ok((value, managers))
    }

    /// Removes what the applier applied last time and not now, and nobody else owns.
    fn prune<'v>(
        &self,
        merged: &'v Versioned<'v, 'a>,
        managers: &Managers,
        version: &'v str,
        last: &'v Owned,
    ) -> Result<Versioned<'v, 'a>, UpdateError> {
        let same = || Versioned { of: merged.of, version: merged.version, value: Cow::Owned(merged.value.clone().into_owned()) };
        let Some(at_last) = self.at(merged, &last.api_version)? else { return Ok(same()) };
        let last_set = last.set.with_named_fields(at_last.of.schema, Some(at_last.of.at));
        let pruned = at_last.of.remove(&at_last.value, &last_set);
        let pruned = Versioned { of: at_last.of, version: &last.api_version, value: Cow::Owned(pruned) };
        let pruned = self.add_back_owned(&at_last, pruned, managers)?;
        let Some(pruned) = self.at(&pruned, &last.api_version)? else { return Ok(same()) };
        // What the applier did not own stays, whoever owns it.
        let gone = at_last.set().difference(&pruned.set()).intersection(&last_set);
        let left = Versioned { value: Cow::Owned(at_last.of.remove(&at_last.value, &gone)), ..at_last.clone() };
        match self.at(&left, version)? {
            Some(found) => Ok(Versioned { of: found.of, version, value: Cow::Owned(found.value.into_owned()) }),
            None => Err(UpdateError::Other(format!("failed to prune fields: no version {version}"))),
        }
    }

    /// Gives back what was removed and someone owns, version by version, that of `pruned` first.
    fn add_back_owned<'v>(
        &self,
        merged: &Versioned<'_, 'a>,
        pruned: Versioned<'v, 'a>,
        managers: &'v Managers,
    ) -> Result<Versioned<'v, 'a>, UpdateError> {
        let mut owned: BTreeMap<&'v str, FieldSet> = BTreeMap::new();
        for found in managers.values() {
            let set = owned.entry(&found.api_version).or_default();
            *set = set.union(&found.set);
        }
        let first = owned.remove_entry(pruned.version);
        let mut merged = Versioned { of: merged.of, version: pruned.version, value: Cow::Owned(merged.value.clone().into_owned()) };
        let mut pruned = pruned;
        for (version, set) in first.into_iter().chain(owned) {
            let Some(now) = self.at(&merged, version)?.map(|object| (object.of, object.value.into_owned())) else { continue };
            let Some(left) = self.at(&pruned, version)?.map(|object| (object.of, object.value.into_owned())) else { continue };
            let (of, value) = now;
            merged = Versioned { of, version, value: Cow::Owned(value) };
            let left = Versioned { of: left.0, version, value: Cow::Owned(left.1) };
            let kept = left.set().union(&set.with_named_fields(of.schema, Some(of.at)));
            let value = of.remove(&merged.value, &merged.set().difference(&kept));
            pruned = Versioned { of, version, value: Cow::Owned(value) };
        }
        Ok(pruned)
    }
}
