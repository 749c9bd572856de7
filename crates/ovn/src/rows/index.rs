//! Rows of a replica by what they are called.

use std::collections::{HashMap, HashSet};

use ovsdb::{Replica, Uuid};

use super::{Id, Ref};

/// UUIDs by table and name, and by table and pair of `external_ids`; in the order of the replica.
#[derive(Default)]
pub(super) struct Index<'a> {
    names: HashMap<&'static str, HashMap<&'a str, Vec<Uuid>>>,
    pairs: HashMap<&'static str, HashMap<&'a str, HashMap<&'a str, Vec<Uuid>>>>,
    all: HashMap<&'static str, Vec<Uuid>>,
}

impl<'a> Index<'a> {
    /// Reads the tables of these rows.
    pub fn new<'b>(replica: &'a Replica, rows: impl Iterator<Item = &'b Ref>) -> Self {
        let mut index = Self::default();
        let mut seen = HashSet::new();
        for Ref { table, id } in rows {
            if !seen.insert((*table, std::mem::discriminant(id))) {
                continue;
            }
            let rows = replica.table(table).rows();
            match id {
                Id::Name(_) => {
                    let names = index.names.entry(table).or_default();
                    rows.for_each(|(uuid, row)| names.entry(row.text("name")).or_default().push(uuid));
                }
                Id::External(..) => {
                    let pairs = index.pairs.entry(table).or_default();
                    let of_row = rows
                        .flat_map(|(uuid, row)| row.get("external_ids").into_iter().flat_map(move |ids| ids.pairs().map(move |pair| (pair, uuid))));
                    of_row.for_each(|((key, value), uuid)| pairs.entry(key).or_default().entry(value).or_default().push(uuid));
                }
                Id::Only => drop(index.all.insert(table, rows.map(|(uuid, _)| uuid).collect())),
            }
        }
        index
    }

    /// Those that are called so.
    pub fn found(&self, at: &Ref) -> &[Uuid] {
        let found = match &at.id {
            Id::Name(name) => self.names.get(at.table).and_then(|names| names.get(name.as_str())),
            Id::External(key, value) => self.pairs.get(at.table).and_then(|pairs| pairs.get(key.as_str())?.get(value.as_str())),
            Id::Only => self.all.get(at.table),
        };
        found.map(Vec::as_slice).unwrap_or_default()
    }
}
