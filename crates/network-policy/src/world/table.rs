//! Rows by key, each with the list that last brought it.

use std::collections::BTreeMap;
use std::ops::RangeFrom;

/// The rows of one kind.
#[derive(Debug)]
pub struct Table<K, R> {
    rows: BTreeMap<K, (R, u32)>,
    /// The number of the newest list.
    list: u32,
}

impl<K, R> Default for Table<K, R> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), list: 0 }
    }
}

impl<K: Ord + Clone, R: PartialEq> Table<K, R> {
    pub fn begin(&mut self) {
        self.list += 1;
    }

    /// Marks a row as seen when it is as it was; false when it differs.
    pub fn keep(&mut self, key: &K, row: Option<&R>) -> bool {
        match (self.rows.get_mut(key), row) {
            (Some((held, seen)), Some(row)) if held == row => {
                *seen = self.list;
                true
            }
            (None, None) => true,
            _ => false,
        }
    }

    /// Puts a row in, or takes it out; returns the one before.
    pub fn set(&mut self, key: K, row: Option<R>) -> Option<R> {
        let before = match row {
            Some(row) => self.rows.insert(key, (row, self.list)),
            None => self.rows.remove(&key),
        };
        before.map(|(row, _)| row)
    }

    /// The keys that the newest list did not bring.
    pub fn stale(&self, of: impl Fn(&K) -> bool) -> Vec<K> {
        self.rows.iter().filter(|(key, (_, seen))| *seen != self.list && of(key)).map(|(key, _)| key.clone()).collect()
    }

    pub fn get(&self, key: &K) -> Option<&R> {
        self.rows.get(key).map(|(row, _)| row)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &R)> {
        self.rows.iter().map(|(key, (row, _))| (key, row))
    }

    pub fn range(&self, range: RangeFrom<K>) -> impl Iterator<Item = (&K, &R)> {
        self.rows.range(range).map(|(key, (row, _))| (key, row))
    }
}
