//! Elements in the form in which a user of the engine holds them, and the difference of two lists of them (pure).

use std::cmp::Ordering;

use super::Element;

/// An element of a set or map as its user holds it: [`Element`], or something smaller where there are very many.
pub trait Entry: Clone {
    /// From what a dump returned.
    fn read(element: Element) -> Self;
    /// As a batch wants it.
    fn element(&self) -> Element;
    /// The order of keys. Entries of one set with equal keys are about the same element.
    fn cmp_key(&self, other: &Self) -> Ordering;
    /// Whether both map to the same data.
    fn same_data(&self, other: &Self) -> bool;
}

/// In interval sets a single key is a range from itself to itself.
fn last(element: &Element) -> &[u8] {
    element.key_end.as_ref().unwrap_or(&element.key)
}

impl Entry for Element {
    fn read(element: Element) -> Self {
        element
    }

    fn element(&self) -> Element {
        self.clone()
    }

    fn cmp_key(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key).then_with(|| last(self).cmp(last(other)))
    }

    fn same_data(&self, other: &Self) -> bool {
        self.data == other.data
    }
}

/// What changes in one set. An element whose data changes is in both lists. Both are in the order of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElementChange<E = Element> {
    /// Elements that go, with the data that is there.
    pub remove: Vec<E>,
    /// Elements that come, with the data that should be there.
    pub add: Vec<E>,
}

impl<E> Default for ElementChange<E> {
    fn default() -> Self {
        Self { remove: Vec::new(), add: Vec::new() }
    }
}

impl<E: Entry> ElementChange<E> {
    /// From `before` to `after`, in any order; of elements that are there twice one counts.
    pub fn between(before: Vec<E>, after: Vec<E>) -> Self {
        let (before, after) = (sorted(before), sorted(after));
        if before.is_empty() || after.is_empty() {
            return Self { remove: before, add: after };
        }
        let mut change = Self::default();
        let (mut before, mut after) = (before.into_iter().peekable(), after.into_iter().peekable());
        loop {
            let order = match (before.peek(), after.peek()) {
                (Some(old), Some(new)) => old.cmp_key(new),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return change,
            };
            let old = if order.is_le() { before.next() } else { None };
            let new = if order.is_ge() { after.next() } else { None };
            if let (Some(old), Some(new)) = (&old, &new)
                && old.same_data(new)
            {
                continue;
            }
            change.remove.extend(old);
            change.add.extend(new);
        }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }

    /// How many elements go and come; one whose data changes counts twice.
    pub fn len(&self) -> usize {
        self.remove.len() + self.add.len()
    }

    /// Whether `list` (in the order of keys) has an element with the key of `entry`.
    pub(crate) fn has_key(list: &[E], entry: &E) -> bool {
        list.binary_search_by(|other| other.cmp_key(entry)).is_ok()
    }
}

/// In the order of keys; of elements that are equal one stays.
fn sorted<E: Entry>(mut list: Vec<E>) -> Vec<E> {
    list.sort_by(E::cmp_key);
    list.dedup_by(|a, b| a.cmp_key(b).is_eq() && a.same_data(b));
    list
}
