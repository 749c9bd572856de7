//! Conflicts of an apply: fields that others own and that the configuration would change.

use crate::managed::{ManagerId, Operation};
use crate::path::{PathElement, path_text};
use crate::set::FieldSet;
use crate::value::quoted;

/// A field and who owns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The owner.
    pub manager: ManagerId,
    /// The field.
    pub path: Vec<PathElement>,
}

impl Conflict {
    /// The message of the cause in a Status, whose reason is `FieldManagerConflict`.
    pub fn message(&self) -> String {
        format!("conflict with {}", printed(&self.manager))
    }

    /// The field of the cause.
    pub fn field(&self) -> String {
        path_text(&self.path)
    }
}

/// All conflicts of an apply, by manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl Conflicts {
    pub(crate) fn set(&self) -> FieldSet {
        let mut set = FieldSet::default();
        self.0.iter().for_each(|conflict| set.insert(&conflict.path));
        set
    }

    /// The message of the Status.
    pub fn message(&self) -> String {
        if let [one] = &self.0[..] {
            return format!("Apply failed with 1 conflict: conflict with {}: {}", printed(&one.manager), one.field());
        }
        let mut lines = Vec::new();
        let mut managers: Vec<&ManagerId> = self.0.iter().map(|conflict| &conflict.manager).collect();
        managers.sort();
        managers.dedup();
        for manager in managers {
            lines.push(format!("conflicts with {}:", printed(manager)));
            lines.extend(self.0.iter().filter(|conflict| conflict.manager == *manager).map(|conflict| format!("- {}", conflict.field())));
        }
        format!("Apply failed with {} conflicts: {}", self.0.len(), lines.join("\n"))
    }
}

fn printed(id: &ManagerId) -> String {
    let mut text = quoted(&id.manager);
    if !id.subresource.is_empty() {
        text.push_str(&format!(" with subresource {}", quoted(&id.subresource)));
    }
    if id.operation == Operation::Update {
        text.push_str(&format!(" using {}", id.api_version));
    }
    text
}
