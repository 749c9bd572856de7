//! The table engine: desired → observe → plan → transactions that fit the send buffer → verify.
//!
//! [`Engine::reconcile`] adopts what is in the kernel: it reads a table, and writes only what differs. [`Engine::apply`] makes a change
//! whose user knows what is in the kernel ([`Plan::between`]). [`Engine::is_undisturbed`] says by the kernel's generation number whether
//! anybody else wrote any rules since, without reading them; [`Engine::plan`] reads them and is empty when all is as desired.
//! [`Engine::delete`] deletes whole tables.

use std::sync::{Mutex, PoisonError};

use super::plan::TablePlan;
use super::{Batch, Desired, Entry, Nft, NftError, Plan, Table};

/// How often a plan for a shared table is made anew because somebody else changed rules meanwhile. The last one is committed as it is.
const TRIES: usize = 16;

/// The engine for one network namespace. It holds no elements.
#[derive(Debug)]
pub struct Engine {
    nft: Nft,
    part: usize,
    /// The generation of rules that we left; absent when others may have written meanwhile.
    left: Mutex<Option<u32>>,
}

/// What the engine did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Elements that went or came ([`Plan::element_count`]).
    pub elements: usize,
    /// Transactions; none when everything was as desired.
    pub transactions: usize,
}

impl Engine {
    /// An engine over the socket `nft`.
    pub fn new(nft: Nft) -> Self {
        Self { nft, part: usize::MAX, left: Mutex::new(None) }
    }

    /// Commits before a transaction has more than about `bytes`, although the kernel may take more at once: memory stays bounded.
    #[must_use]
    pub fn in_parts_of(mut self, bytes: usize) -> Self {
        self.part = bytes;
        self
    }

    /// Its netlink socket.
    pub fn nft(&self) -> &Nft {
        &self.nft
    }

    /// Its netlink socket.
    pub fn nft_mut(&mut self) -> &mut Nft {
        &mut self.nft
    }

    /// Whether nobody wrote any rules of this namespace since this engine did.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn is_undisturbed(&self) -> Result<bool, NftError> {
        let Some(left) = self.left() else { return Ok(false) };
        Ok(self.nft.generation()? == left)
    }

    /// Reads the tables; what differs from `desired` is the plan.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn plan<E: Entry>(&self, desired: Vec<Desired<E>>) -> Result<Plan<E>, NftError> {
        let mut plans = Vec::new();
        for mut desired in desired {
            let observed = self.nft.observe(&desired.table)?;
            let mut plan = TablePlan::of(&observed, &desired);
            for set in desired.sets.values_mut() {
                let Some(elements) = set.elements.take() else { continue };
                let there = observed.sets.contains_key(&set.spec.name) && !plan.rebuilds();
                let before = if there { self.nft.elements(&desired.table, &set.spec.name)? } else { Vec::new() };
                let before = before.into_iter().map(E::read).collect();
                plan.elements(set, super::ElementChange::between(before, elements));
            }
            plans.push(plan);
        }
        Ok(Plan::new(plans))
    }

    /// Makes the tables what is desired: reads them, and writes what differs.
    ///
    /// # Errors
    /// When the kernel refuses. What was committed stays.
    pub fn reconcile<E: Entry>(&self, desired: Vec<Desired<E>>) -> Result<Report, NftError> {
        if !desired.iter().any(|desired| desired.shared) {
            let before = self.nft.generation()?;
            let plan = self.plan(desired)?;
            return self.commit(plan, before, true);
        }
        for _ in 1..TRIES {
            let before = self.nft.generation()?;
            let plan = self.plan(desired.clone())?;
            let (report, batch) = (Report { elements: plan.element_count(), transactions: usize::from(!plan.is_empty()) }, batch_of(plan));
            match self.nft.commit_at(before, &batch) {
                Err(error) if error.is_superseded() => {}
                Err(error @ NftError::TooLarge { .. }) => {
                    drop(error);
                    break;
                }
                other => return other.map(|()| report),
            }
        }
        let before = self.nft.generation()?;
        let plan = self.plan(desired)?;
        self.commit(plan, before, true)
    }

    /// Makes a change.
    ///
    /// # Errors
    /// When the kernel refuses. What was committed stays; nothing, where all of it fits one transaction.
    pub fn apply<E: Entry>(&self, plan: Plan<E>) -> Result<Report, NftError> {
        if plan.is_empty() {
            return Ok(Report::default());
        }
        let before = self.nft.generation()?;
        let undisturbed = self.left() == Some(before);
        self.commit(plan, before, undisturbed)
    }

    /// Makes a change in one transaction, or nothing of it. [`Self::is_undisturbed`] does not know of it.
    ///
    /// # Errors
    /// When the kernel refuses; [`NftError::TooLarge`] when one transaction cannot hold it.
    pub fn apply_at_once<E: Entry>(&self, plan: Plan<E>) -> Result<Report, NftError> {
        let (elements, batch) = (plan.element_count(), batch_of(plan));
        self.nft.commit(&batch)?;
        Ok(Report { elements, transactions: usize::from(!batch.is_empty()) })
    }

    /// Deletes tables with everything in them, in one transaction; a table that does not exist is no error.
    ///
    /// # Errors
    /// When the kernel refuses; then all of them stay.
    pub fn delete(&self, tables: impl IntoIterator<Item = Table>) -> Result<(), NftError> {
        let mut batch = Batch::new();
        for table in tables {
            batch.destroy_table(&table);
        }
        self.nft.commit(&batch)
    }

    fn left(&self) -> Option<u32> {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits a plan. Its user knows the rules of generation `before` when `known`.
    fn commit<E: Entry>(&self, plan: Plan<E>, before: u32, known: bool) -> Result<Report, NftError> {
        let elements = plan.element_count();
        let mut transactions =
            Transactions { batch: Batch::new(), part: self.part, count: 0, commit: |batch: &Batch| self.nft.commit_counted(batch) };
        let result = plan.units(|unit| transactions.put(unit)).and_then(|()| transactions.flush());
        let count = transactions.count;
        // After a refusal the generation shows whether the kernel is as it was.
        let now = self.nft.generation();
        let left = now.ok().filter(|now| known && now.wrapping_sub(before) as usize == count).filter(|_| result.is_ok() || count == 0);
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = left;
        result.map(|()| Report { elements, transactions: count })
    }
}

/// The whole plan as one batch.
fn batch_of<E: Entry>(plan: Plan<E>) -> Batch {
    let mut whole = Batch::new();
    let filled = plan.units(|unit| {
        put(&mut whole, unit);
        Ok(())
    });
    debug_assert!(filled.is_ok(), "nothing is committed here");
    whole
}

fn put(batch: &mut Batch, unit: super::plan::Unit) {
    batch.together(|batch| unit.into_iter().for_each(|(table, operation)| operation.write(&table, batch)));
}

/// Transactions in the making.
struct Transactions<F> {
    batch: Batch,
    part: usize,
    count: usize,
    commit: F,
}

impl<F: FnMut(&Batch) -> Result<usize, NftError>> Transactions<F> {
    fn put(&mut self, unit: super::plan::Unit) -> Result<(), NftError> {
        put(&mut self.batch, unit);
        if self.batch.bytes() > self.part { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), NftError> {
        if !self.batch.is_empty() {
            self.count += (self.commit)(&self.batch)?;
            self.batch = Batch::new();
        }
        Ok(())
    }
}
