//! Rows that should be there, compared with those that are: a plan, and its transaction.
//!
//! Rows of ours carry their owner in `external_ids`. A plan is about one owner: it inserts and changes what is wanted, sweeps what carries
//! the owner's mark and is no longer wanted, and reports rows of others that have the name of a wanted one. It never changes those.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use ovsdb::{Atom, Condition, Datum, Mutation, Mutator, Operation, Refused, Replica, Row, Transaction, Uuid};

use crate::schema::HELD;
use index::Index;

mod index;
mod parts;

pub use parts::Part;

pub use ovsdb::names::OWNER;
/// The key by which rows without a name are found.
pub const KEY: &str = "mullion.io/key";

/// Columns and their values.
pub type Columns = BTreeMap<&'static str, Datum>;

/// How a row is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Id {
    /// By its column `name`.
    Name(String),
    /// By a pair of its `external_ids`.
    External(String, String),
    /// It is the only row of its table.
    Only,
}

impl Id {
    fn fits(&self, row: &Row) -> bool {
        match self {
            Self::Name(name) => row.text("name") == name,
            Self::External(key, value) => row.entry("external_ids", key) == Some(value),
            Self::Only => true,
        }
    }

    fn condition(&self) -> Option<Condition> {
        match self {
            Self::Name(name) => Some(Condition::equal("name", name.as_str())),
            Self::External(key, value) => Some(Condition::includes("external_ids", Datum::map([(key.as_str(), value.as_str())]))),
            Self::Only => None,
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::External(key, value) if key == KEY => f.write_str(value),
            Self::External(key, value) => write!(f, "{key}={value}"),
            Self::Only => f.write_str("the only one"),
        }
    }
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ref {
    /// The table.
    pub table: &'static str,
    /// How the row is found.
    pub id: Id,
}

impl Ref {
    /// A row with a name.
    pub fn named(table: &'static str, name: impl Into<String>) -> Self {
        Self { table, id: Id::Name(name.into()) }
    }

    /// A row with a pair of `external_ids`.
    pub fn external(table: &'static str, key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { table, id: Id::External(key.into(), value.into()) }
    }

    /// The row of a replica that fits first.
    #[must_use]
    pub fn find<'a>(&self, replica: &'a Replica) -> Option<(Uuid, &'a Row)> {
        replica.table(self.table).rows().find(|(_, row)| self.id.fits(row))
    }
}

impl fmt::Display for Ref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.id)
    }
}

/// Whose a wanted row is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// The plan's owner makes and sweeps it.
    #[default]
    Own,
    /// Made where it is missing; one of another owner will do, and only what is wanted of it is changed. Never swept.
    Shared,
    /// Another owner of ours makes it; only the columns that are wanted are this one's.
    Others,
}

/// A row that should be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Its table, and how it is found.
    pub at: Ref,
    /// Whose it is.
    pub ownership: Ownership,
    /// Which row holds it in which column; rows of root tables need none.
    pub held: Option<(Ref, &'static str)>,
    /// Columns that are written when the row is made, and not changed later.
    pub initial: Columns,
    /// Columns that are kept so.
    pub columns: Columns,
    /// Pairs that are kept in columns of maps; other pairs stay.
    pub entries: BTreeMap<&'static str, BTreeMap<String, String>>,
    /// Rows that are kept in columns of rows; others stay.
    pub members: BTreeMap<&'static str, Vec<Ref>>,
    /// Columns of rows in which others do not stay.
    pub exact: BTreeSet<&'static str>,
    /// Columns among [`Self::columns`] that change element by element.
    pub elements: BTreeSet<&'static str>,
}

impl Want {
    fn new(at: Ref) -> Self {
        let (initial, columns, entries, members) = (Columns::new(), Columns::new(), BTreeMap::new(), BTreeMap::new());
        Self { at, ownership: Ownership::Own, held: None, initial, columns, entries, members, exact: BTreeSet::new(), elements: BTreeSet::new() }
    }

    /// A row with a name.
    pub fn named(table: &'static str, name: impl Into<String>) -> Self {
        Self::new(Ref::named(table, name))
    }

    /// A row that is found by a pair of its `external_ids`.
    pub fn external(table: &'static str, key: impl Into<String>, value: impl Into<String>) -> Self {
        Self::new(Ref::external(table, key, value))
    }

    /// The only row of a table, which somebody else made.
    #[must_use]
    pub fn only(table: &'static str) -> Self {
        Self { ownership: Ownership::Shared, ..Self::new(Ref { table, id: Id::Only }) }
    }

    /// Not this plan's alone.
    #[must_use]
    pub fn owned(mut self, ownership: Ownership) -> Self {
        self.ownership = ownership;
        self
    }

    /// Held by a row, in a column of it.
    #[must_use]
    pub fn held_by(mut self, holder: Ref, column: &'static str) -> Self {
        self.held = Some((holder, column));
        self
    }

    /// With a column that is written once.
    #[must_use]
    pub fn at_first(mut self, column: &'static str, value: impl Into<Datum>) -> Self {
        self.initial.insert(column, value.into());
        self
    }

    /// With a column that is kept.
    #[must_use]
    pub fn with(mut self, column: &'static str, value: impl Into<Datum>) -> Self {
        self.columns.insert(column, value.into());
        self
    }

    /// With a set that is kept, and of which only what differs is written.
    #[must_use]
    pub fn with_elements(mut self, column: &'static str, value: Datum) -> Self {
        self.elements.insert(column);
        self.with(column, value)
    }

    /// With a pair that is kept.
    #[must_use]
    pub fn entry(mut self, column: &'static str, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.entries.entry(column).or_default().insert(key.into(), value.into());
        self
    }

    /// With a column of rows that has the members alone.
    #[must_use]
    pub fn exactly(mut self, column: &'static str) -> Self {
        self.members.entry(column).or_default();
        self.exact.insert(column);
        self
    }

    /// The row, and all that it refers to.
    fn rows(&self) -> impl Iterator<Item = &Ref> {
        std::iter::once(&self.at).chain(self.held.iter().map(|(holder, _)| holder)).chain(self.members.values().flatten())
    }

    /// With a row that is kept among those of a column.
    #[must_use]
    pub fn member(mut self, column: &'static str, row: Ref) -> Self {
        self.members.entry(column).or_default().push(row);
        self
    }
}

/// What a row refers to: one that is there, or one that the same transaction makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// It is there.
    There(Uuid),
    /// It is made under this name.
    Made(String),
}

impl Target {
    fn atom(&self) -> Atom {
        match self {
            Self::There(uuid) => Atom::Uuid(*uuid),
            Self::Made(name) => Atom::Named(name.clone()),
        }
    }
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a row.
    Insert {
        /// Which.
        at: Ref,
        /// Its name in the transaction.
        name: String,
        /// Its columns.
        columns: Columns,
        /// Rows among its columns.
        members: BTreeMap<&'static str, Vec<(Ref, Target)>>,
        /// What holds it.
        holder: Option<(Ref, Target, &'static str)>,
        /// A row of ours of that name goes in the same transaction.
        replaces: bool,
    },
    /// Gives a column another value.
    Change {
        /// Which row.
        at: Ref,
        /// Its UUID.
        uuid: Uuid,
        /// The column.
        column: &'static str,
        /// The value that was seen.
        from: Datum,
        /// The value that is wanted.
        to: Datum,
    },
    /// Changes pairs of a column.
    Entries {
        /// Which row.
        at: Ref,
        /// Its UUID.
        uuid: Uuid,
        /// The column.
        column: &'static str,
        /// Pairs that go.
        gone: BTreeMap<String, String>,
        /// Pairs that come.
        new: BTreeMap<String, String>,
    },
    /// Changes elements of a column that is a set.
    Elements {
        /// Which row.
        at: Ref,
        /// Its UUID.
        uuid: Uuid,
        /// The column.
        column: &'static str,
        /// Elements that go.
        gone: BTreeSet<Atom>,
        /// Elements that come.
        new: BTreeSet<Atom>,
    },
    /// Adds rows to a column, and takes others out of it.
    Join {
        /// Which row.
        at: Ref,
        /// Its UUID.
        uuid: Uuid,
        /// The column.
        column: &'static str,
        /// The rows.
        rows: Vec<(Ref, Target)>,
        /// Those that go; they stay rows.
        gone: Vec<Uuid>,
    },
    /// Removes a row of ours.
    Remove {
        /// Which.
        at: Ref,
        /// Its UUID.
        uuid: Uuid,
        /// What holds it.
        holder: Option<(Ref, Uuid, &'static str)>,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs =
            |sign: char, pairs: &BTreeMap<String, String>| pairs.iter().map(|(key, value)| format!(" {sign}{key}={value}")).collect::<String>();
        match self {
            Self::Insert { at, columns, members, holder, .. } => {
                write!(f, "+ {at}")?;
                if let Some((holder, _, column)) = holder {
                    write!(f, " in {holder} {column}")?;
                }
                columns.iter().filter(|(name, _)| **name != "name").try_for_each(|(name, value)| write!(f, "\n    {name}: {value}"))?;
                members.iter().try_for_each(|(column, rows)| {
                    let rows: Vec<String> = rows.iter().map(|(row, _)| row.id.to_string()).collect();
                    write!(f, "\n    {column}: {}", rows.join(", "))
                })
            }
            Self::Change { at, column, from, to, .. } => write!(f, "~ {at} {column}: {from} -> {to}"),
            Self::Entries { at, column, gone, new, .. } => write!(f, "~ {at} {column}:{}{}", pairs('-', gone), pairs('+', new)),
            Self::Elements { at, column, gone, new, .. } => {
                let elements = |sign: char, atoms: &BTreeSet<Atom>| atoms.iter().map(|atom| format!(" {sign}{atom}")).collect::<String>();
                write!(f, "~ {at} {column}:{}{}", elements('-', gone), elements('+', new))
            }
            Self::Join { at, column, rows, gone, .. } => {
                let gone = gone.iter().map(|uuid| format!(" -{uuid}"));
                write!(f, "~ {at} {column}:{}", gone.chain(rows.iter().map(|(row, _)| format!(" +{}", row.id))).collect::<String>())
            }
            Self::Remove { at, holder: Some((holder, _, _)), .. } => write!(f, "- {at} of {holder}"),
            Self::Remove { at, holder: None, .. } => write!(f, "- {at}"),
        }
    }
}

/// Why something wanted is not planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A row of another owner has its name.
    #[error("cannot write {at}: a row of that name belongs to {owner}; remove or rename it, or choose another name")]
    Foreign {
        /// The row.
        at: Ref,
        /// Whose it is.
        owner: String,
    },
    /// There are several.
    #[error("cannot write {at}: there are {count} rows of that name; remove all but one")]
    Ambiguous {
        /// The row.
        at: Ref,
        /// How many there are.
        count: usize,
    },
    /// What holds it, or a member of it, is not there.
    #[error("cannot write {at}: there is no {needs}")]
    Missing {
        /// The row.
        at: Ref,
        /// What is not there.
        needs: Ref,
    },
    /// The server takes everything but this row.
    #[error("cannot write {at}: {refused}")]
    Refused {
        /// The row.
        at: Ref,
        /// The server's answer.
        refused: Refused,
    },
}

impl Problem {
    /// The row that is not planned or written.
    #[must_use]
    pub fn at(&self) -> &Ref {
        match self {
            Self::Foreign { at, .. } | Self::Ambiguous { at, .. } | Self::Missing { at, .. } | Self::Refused { at, .. } => at,
        }
    }
}

/// What has to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In their order.
    pub steps: Vec<Step>,
    /// What is wanted and cannot be done.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))?;
        self.problems.iter().try_for_each(|problem| writeln!(f, "! {problem}"))
    }
}

/// Tables whose rows are owned by marks.
fn marked() -> BTreeSet<&'static str> {
    let held = HELD.iter().map(|(table, ..)| *table);
    held.chain(["Logical_Switch", "Logical_Router", "Load_Balancer", "Port_Group", "Address_Set"]).collect()
}

pub(crate) fn owner(row: &Row) -> Option<&str> {
    row.entry("external_ids", OWNER)
}

struct Planner<'a> {
    replica: &'a Replica,
    scope: &'a str,
    wants: &'a [Want],
    index: Index<'a>,
    /// Holders by what they hold.
    holders: OnceCell<HashMap<Uuid, (&'static str, Uuid, &'static str)>>,
    /// Wanted rows that the transaction makes.
    made: HashMap<&'a Ref, String>,
    kept: HashSet<Uuid>,
    plan: Plan,
}

/// Compares what an owner wants with what is there.
#[must_use]
pub fn plan(replica: &Replica, scope: &str, wants: &[Want]) -> Plan {
    let mut planner = Planner {
        replica,
        scope,
        wants,
        index: Index::new(replica, wants.iter().flat_map(Want::rows)),
        holders: OnceCell::new(),
        made: HashMap::new(),
        kept: HashSet::new(),
        plan: Plan::default(),
    };
    planner.run();
    planner.plan
}

impl<'a> Planner<'a> {
    fn row(&self, table: &str, uuid: Uuid) -> Option<&'a Row> {
        self.replica.table(table).get(uuid)
    }

    /// The holder of a row that is there.
    fn holder(&self, uuid: Uuid) -> Option<(&'static str, Uuid, &'static str)> {
        let all = || {
            let held = |(_, table, column): &(&str, &'static str, &'static str)| {
                let (table, column) = (*table, *column);
                let rows = self.replica.table(table).rows();
                rows.flat_map(move |(holder, row)| {
                    row.get(column).into_iter().flat_map(Datum::uuids).map(move |uuid| (uuid, (table, holder, column))).collect::<Vec<_>>()
                })
                .collect::<Vec<_>>()
            };
            HELD.iter().flat_map(held).collect()
        };
        self.holders.get_or_init(all).get(&uuid).copied()
    }

    fn target(&self, at: &Ref) -> Option<Target> {
        match self.made.get(at) {
            Some(name) => Some(Target::Made(name.clone())),
            None => self.index.found(at).first().map(|uuid| Target::There(*uuid)),
        }
    }

    /// The wanted rows with the rows that are theirs; what cannot be, is a problem.
    fn match_rows(&mut self) -> Vec<(&'a Want, Option<Uuid>)> {
        let mut matched = Vec::new();
        for want in self.wants {
            let found = self.index.found(&want.at);
            let ([] | [_]) = found else {
                self.plan.problems.push(Problem::Ambiguous { at: want.at.clone(), count: found.len() });
                self.kept.extend(found);
                continue;
            };
            let uuid = found.first().copied();
            let owner = uuid.and_then(|uuid| self.row(want.at.table, uuid)).map(|row| owner(row));
            let problem = match (want.ownership, owner) {
                (Ownership::Others, None) => Some(Problem::Missing { at: want.at.clone(), needs: want.at.clone() }),
                (Ownership::Shared, None) if want.at.id == Id::Only => Some(Problem::Missing { at: want.at.clone(), needs: want.at.clone() }),
                (Ownership::Shared, _) | (Ownership::Own, None) | (Ownership::Others, Some(Some(_))) => None,
                (Ownership::Own, Some(Some(owner))) if owner == self.scope => None,
                (_, Some(owner)) => Some(Problem::Foreign { at: want.at.clone(), owner: owner.unwrap_or("another program").to_owned() }),
            };
            match problem {
                Some(problem) => self.plan.problems.push(problem),
                None => matched.push((want, uuid)),
            }
        }
        matched
    }

    fn run(&mut self) {
        let matched = self.match_rows();
        let moves = |(want, uuid): &(&Want, Option<Uuid>)| {
            let (holder, column) = want.held.as_ref()?;
            let now = self.holder((*uuid)?)?;
            let wanted = self.index.found(holder);
            (now.2 == *column && !wanted.contains(&now.1)).then_some((*uuid)?)
        };
        let moving: HashSet<Uuid> = matched.iter().filter_map(moves).collect();
        let mut inserted = 0;
        for (want, uuid) in &matched {
            if uuid.is_none_or(|uuid| moving.contains(&uuid)) {
                self.made.insert(&want.at, format!("row{inserted}"));
                inserted += 1;
            }
        }
        // What cannot be held would vanish: it takes what it would hold with it.
        loop {
            let unheld: Vec<(&Ref, &Ref)> = matched.iter().filter_map(|(want, _)| self.unheld(want)).collect();
            if unheld.is_empty() {
                break;
            }
            for (at, needs) in unheld {
                self.made.remove(at);
                self.plan.problems.push(Problem::Missing { at: at.clone(), needs: needs.clone() });
            }
        }
        for (want, uuid) in &matched {
            match (self.made.get(&want.at).cloned(), uuid) {
                (Some(name), uuid) => self.insert(want, name, uuid.is_some()),
                (None, Some(uuid)) if !moving.contains(uuid) => {
                    self.kept.insert(*uuid);
                    self.compare(want, *uuid);
                }
                (None, _) => {}
            }
        }
        self.sweep();
    }

    /// A row that would be made although what it needs is not there. A group does with the members that are there.
    fn unheld(&self, want: &'a Want) -> Option<(&'a Ref, &'a Ref)> {
        self.made.get(&want.at)?;
        let members = want.members.iter().filter(|(column, _)| !want.exact.contains(*column)).flat_map(|(_, rows)| rows);
        let needs = want.held.iter().map(|(holder, _)| holder).chain(members);
        needs.filter(|needs| self.target(needs).is_none()).map(|needs| (&want.at, needs)).next()
    }

    fn insert(&mut self, want: &Want, name: String, replaces: bool) {
        let mut columns = want.initial.clone();
        columns.extend(want.columns.clone());
        let mut entries = want.entries.clone();
        match &want.at.id {
            Id::Name(name) => drop(columns.insert("name", name.as_str().into())),
            Id::External(key, value) => drop(entries.entry("external_ids").or_default().insert(key.clone(), value.clone())),
            Id::Only => {}
        }
        if want.ownership == Ownership::Own {
            entries.entry("external_ids").or_default().insert(OWNER.to_owned(), self.scope.to_owned());
        }
        columns.extend(entries.into_iter().map(|(column, pairs)| (column, Datum::map(pairs))));
        let missing = want.members.values().flatten().filter(|row| self.target(row).is_none());
        let missing: Vec<Problem> = missing.map(|needs| Problem::Missing { at: want.at.clone(), needs: needs.clone() }).collect();
        self.plan.problems.extend(missing);
        let members = want.members.iter().map(|(column, rows)| {
            let rows = rows.iter().filter_map(|row| Some((row.clone(), self.target(row)?))).collect();
            (*column, rows)
        });
        let holder = want.held.as_ref().and_then(|(holder, column)| Some((holder.clone(), self.target(holder)?, *column)));
        let step = Step::Insert { at: want.at.clone(), name, columns, members: members.collect(), holder, replaces };
        self.plan.steps.push(step);
    }

    fn compare(&mut self, want: &Want, uuid: Uuid) {
        let Some(row) = self.row(want.at.table, uuid) else { return };
        let at = || want.at.clone();
        for (column, wanted) in &want.columns {
            let Some(present) = row.get(column).filter(|present| *present != wanted) else { continue };
            self.plan.steps.push(match (present, wanted) {
                (Datum::Map(_), Datum::Map(_)) => {
                    let pairs = |all: &Datum| all.pairs().map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>();
                    let (mut gone, mut new) = (pairs(present), pairs(wanted));
                    gone.retain(|key, value| wanted.get(key) != Some(value));
                    new.retain(|key, value| present.get(key) != Some(value));
                    Step::Entries { at: at(), uuid, column, gone, new }
                }
                (Datum::Set(present), Datum::Set(wanted)) if want.elements.contains(column) => {
                    let less = |these: &BTreeSet<Atom>, those: &BTreeSet<Atom>| these.difference(those).cloned().collect();
                    Step::Elements { at: at(), uuid, column, gone: less(present, wanted), new: less(wanted, present) }
                }
                _ => Step::Change { at: at(), uuid, column, from: present.clone(), to: wanted.clone() },
            });
        }
        for (column, pairs) in &want.entries {
            let Some(present) = row.get(column) else { continue };
            let new: BTreeMap<String, String> =
                pairs.iter().filter(|(key, value)| present.get(key) != Some(value)).map(|(key, value)| (key.clone(), value.clone())).collect();
            let gone = new.keys().filter_map(|key| Some((key.clone(), present.get(key)?.to_owned()))).collect();
            if !new.is_empty() {
                self.plan.steps.push(Step::Entries { at: at(), uuid, column, gone, new });
            }
        }
        for (column, rows) in &want.members {
            let present: HashSet<Uuid> = row.get(column).into_iter().flat_map(Datum::uuids).collect();
            let mut new = Vec::new();
            for row in rows {
                match self.target(row) {
                    Some(Target::There(uuid)) if present.contains(&uuid) => {}
                    Some(target) => new.push((row.clone(), target)),
                    None => self.plan.problems.push(Problem::Missing { at: at(), needs: row.clone() }),
                }
            }
            let wanted: HashSet<Uuid> = rows.iter().flat_map(|row| self.index.found(row)).copied().collect();
            let gone = present.iter().filter(|uuid| want.exact.contains(column) && !wanted.contains(*uuid)).copied();
            let gone: Vec<Uuid> = gone.collect::<BTreeSet<_>>().into_iter().collect();
            if !new.is_empty() || !gone.is_empty() {
                self.plan.steps.push(Step::Join { at: at(), uuid, column, rows: new, gone });
            }
        }
    }

    /// Rows of the owner that are not wanted, or that are made anew elsewhere.
    fn sweep(&mut self) {
        let mut stale = Vec::new();
        for table in marked() {
            let rows = self.replica.table(table).rows().filter(|(uuid, row)| owner(row) == Some(self.scope) && !self.kept.contains(uuid));
            stale.extend(rows.map(|(uuid, row)| (table, uuid, row)));
        }
        let going: HashSet<Uuid> = stale.iter().map(|(_, uuid, _)| *uuid).collect();
        for (table, uuid, row) in stale {
            let holder = self.holder(uuid);
            // What holds it takes it along.
            if holder.is_some_and(|(_, holder, _)| going.contains(&holder)) {
                continue;
            }
            let holder = holder.and_then(|(table, holder, column)| Some((label(table, self.row(table, holder)?), holder, column)));
            self.plan.steps.push(Step::Remove { at: label(table, row), uuid, holder });
        }
    }
}

/// A name for a row that is there.
fn label(table: &'static str, row: &Row) -> Ref {
    let name = row.text("name");
    match row.entry("external_ids", KEY) {
        _ if !name.is_empty() => Ref::named(table, name),
        Some(key) => Ref::external(table, KEY, key),
        None => match row.get("external_ids").and_then(|ids| ids.pairs().find(|(key, _)| *key != OWNER)) {
            Some((key, value)) => Ref::external(table, key, value),
            None => Ref { table, id: Id::Only },
        },
    }
}

impl Plan {
    /// Whether nothing has to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The plan as one transaction, which fails if what was seen has changed. `lock`: it fails unless this client holds it.
    #[must_use]
    pub fn transaction(&self, lock: Option<&str>) -> Transaction {
        let assert = lock.map(|lock| Operation::Assert { lock: lock.to_owned() });
        let (mut guards, mut changes) = (Vec::from_iter(assert), Vec::new());
        // Rows that go make room for those of the same name.
        let (removals, others): (Vec<&Step>, Vec<&Step>) = self.steps.iter().partition(|step| matches!(step, Step::Remove { .. }));
        for step in removals.into_iter().chain(others) {
            step.write(&mut guards, &mut changes);
        }
        guards.append(&mut changes);
        Transaction { operations: guards }
    }
}

fn is_there(table: &str, uuid: Uuid) -> Operation {
    Operation::wait_row(table, uuid, [("_uuid".to_owned(), uuid.into())].into())
}

impl Step {
    fn write(&self, guards: &mut Vec<Operation>, changes: &mut Vec<Operation>) {
        let mutate = |table: &str, uuid: Uuid, mutations: Vec<Mutation>| Operation::Mutate {
            table: table.to_owned(),
            conditions: vec![Condition::row(uuid)],
            mutations,
        };
        match self {
            Self::Insert { at, name, columns, members, holder, replaces } => {
                guards.extend(at.id.condition().filter(|_| !replaces).map(|condition| Operation::wait_none(at.table, vec![condition])));
                let mut row: BTreeMap<String, Datum> = columns.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
                let atoms = |rows: &[(Ref, Target)]| Datum::set(rows.iter().map(|(_, target)| target.atom()));
                row.extend(members.iter().map(|(column, rows)| ((*column).to_owned(), atoms(rows))));
                changes.push(Operation::Insert { table: at.table.to_owned(), name: Some(name.clone()), row });
                let made = || Datum::from(Atom::Named(name.clone()));
                match holder {
                    Some((holder, Target::There(uuid), column)) => {
                        guards.push(is_there(holder.table, *uuid));
                        changes.push(mutate(holder.table, *uuid, vec![Mutation::new(column, Mutator::Insert, made())]));
                    }
                    Some((holder, Target::Made(of), column)) => changes.push(Operation::Mutate {
                        table: holder.table.to_owned(),
                        conditions: vec![Condition::equal("_uuid", Atom::Named(of.clone()))],
                        mutations: vec![Mutation::new(column, Mutator::Insert, made())],
                    }),
                    None => {}
                }
            }
            Self::Change { at, uuid, column, from, to } => {
                guards.push(Operation::wait_row(at.table, *uuid, [((*column).to_owned(), from.clone())].into()));
                let row = [((*column).to_owned(), to.clone())].into();
                changes.push(Operation::Update { table: at.table.to_owned(), conditions: vec![Condition::row(*uuid)], row });
            }
            Self::Entries { at, uuid, column, gone, new } => {
                guards.push(is_there(at.table, *uuid));
                // A pair goes only if it is as it was seen, and comes only where its key is free: no wait for the whole column is needed.
                let mutation = |mutator, pairs: &BTreeMap<String, String>| {
                    let pairs = Datum::map(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())));
                    Some(Mutation::new(column, mutator, pairs)).filter(|mutation| !mutation.value.is_empty())
                };
                let mutations = [mutation(Mutator::Delete, gone), mutation(Mutator::Insert, new)].into_iter().flatten().collect();
                changes.push(mutate(at.table, *uuid, mutations));
            }
            Self::Elements { at, uuid, column, gone, new } => {
                guards.push(is_there(at.table, *uuid));
                let mutations = [(Mutator::Delete, gone), (Mutator::Insert, new)]
                    .map(|(mutator, atoms)| Mutation::new(column, mutator, Datum::Set(atoms.clone())));
                changes.push(mutate(at.table, *uuid, mutations.into_iter().filter(|mutation| !mutation.value.is_empty()).collect()));
            }
            Self::Join { at, uuid, column, rows, gone } => {
                guards.push(is_there(at.table, *uuid));
                let rows = Mutation::new(column, Mutator::Insert, Datum::set(rows.iter().map(|(_, target)| target.atom())));
                let gone = Mutation::new(column, Mutator::Delete, Datum::set(gone.iter().copied()));
                changes.push(mutate(at.table, *uuid, [gone, rows].into_iter().filter(|mutation| !mutation.value.is_empty()).collect()));
            }
            Self::Remove { uuid, holder: Some((holder, of, column)), .. } => {
                changes.push(mutate(holder.table, *of, vec![Mutation::new(column, Mutator::Delete, (*uuid).into())]));
            }
            Self::Remove { at, uuid, holder: None } => {
                changes.push(Operation::Delete { table: at.table.to_owned(), conditions: vec![Condition::row(*uuid)] });
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
