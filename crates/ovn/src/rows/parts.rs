//! A plan row by row: for a transaction each, where the server refuses all of them in one.

use std::collections::HashMap;

use ovsdb::Uuid;

use super::{Plan, Problem, Ref, Step, Target};

/// The steps of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The row.
    pub at: Ref,
    steps: Vec<Step>,
}

impl Plan {
    /// The plan's rows; those that only go come first, and each comes after those that it refers to.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut places: HashMap<&Ref, usize> = HashMap::new();
        for step in &self.steps {
            let place = *places.entry(step.at()).or_insert_with(|| {
                parts.push(Part { at: step.at().clone(), steps: Vec::new() });
                parts.len() - 1
            });
            parts[place].steps.push(step.clone());
        }
        let goes = |part: &Part| part.steps.iter().all(|step| matches!(step, Step::Remove { .. }));
        let (mut ordered, mut rest): (Vec<Part>, Vec<Part>) = parts.into_iter().partition(goes);
        while !rest.is_empty() {
            let made: Vec<String> = rest.iter().filter_map(Part::makes).map(str::to_owned).collect();
            let waits =
                |part: &Part| part.steps.iter().flat_map(Step::targets).any(|target| matches!(target, Target::Made(name) if made.contains(name)));
            let (waiting, next): (Vec<Part>, Vec<Part>) = rest.into_iter().partition(waits);
            // Rows that refer to each other do not come about one by one.
            let stuck = next.is_empty();
            ordered.extend(next);
            rest = if stuck { Vec::new() } else { waiting };
        }
        ordered
    }
}

impl Part {
    /// The name in a transaction of the row that it makes.
    #[must_use]
    pub fn makes(&self) -> Option<&str> {
        self.steps.iter().find_map(|step| match step {
            Step::Insert { name, .. } => Some(name.as_str()),
            _ => None,
        })
    }

    /// The part as a plan. `made`: what earlier parts made, by its name. Members that were not made are left out.
    ///
    /// # Errors
    /// What holds the row was not made.
    pub fn plan(&self, made: &HashMap<String, Uuid>) -> Result<Plan, Box<Problem>> {
        let there = |target: &Target| match target {
            Target::There(uuid) => Some(Target::There(*uuid)),
            Target::Made(name) => made.get(name).map(|uuid| Target::There(*uuid)),
        };
        let known = |rows: &mut Vec<(Ref, Target)>| {
            *rows = rows.drain(..).filter_map(|(row, target)| Some((row, there(&target)?))).collect();
        };
        let mut steps = self.steps.clone();
        for step in &mut steps {
            match step {
                Step::Insert { at, members, holder, .. } => {
                    members.values_mut().for_each(known);
                    if let Some((row, target, _)) = holder {
                        *target = there(target).ok_or_else(|| Box::new(Problem::Missing { at: at.clone(), needs: row.clone() }))?;
                    }
                }
                Step::Join { rows, .. } => known(rows),
                Step::Change { .. } | Step::Entries { .. } | Step::Remove { .. } => {}
            }
        }
        Ok(Plan { steps, problems: Vec::new() })
    }
}

impl Step {
    /// The row that it is about.
    fn at(&self) -> &Ref {
        match self {
            Self::Insert { at, .. } | Self::Change { at, .. } | Self::Entries { at, .. } | Self::Join { at, .. } | Self::Remove { at, .. } => at,
        }
    }

    fn targets(&self) -> Vec<&Target> {
        match self {
            Self::Insert { members, holder, .. } => {
                members.values().flatten().map(|(_, target)| target).chain(holder.iter().map(|(_, target, _)| target)).collect()
            }
            Self::Join { rows, .. } => rows.iter().map(|(_, target)| target).collect(),
            Self::Change { .. } | Self::Entries { .. } | Self::Remove { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rows::{OWNER, Want, plan, tests::replica};

    #[test]
    fn each_row_comes_after_what_it_refers_to_and_does_without_what_was_not_made() {
        let there = replica(&json!({
            "Logical_Switch": {"00000000-0000-0000-0000-000000000001": {"name": "node1", "ports": ["uuid", "00000000-0000-0000-0000-000000000002"]}},
            "Logical_Switch_Port": {"00000000-0000-0000-0000-000000000002": {"name": "old", "external_ids": ["map", [[OWNER, "me"]]]}},
        }));
        let port = |name: &str| Want::named("Logical_Switch_Port", name).held_by(Ref::named("Logical_Switch", "node1"), "ports");
        let of_port = |name: &str| Ref::named("Logical_Switch_Port", name);
        let wants = [
            Want::external("ACL", "k", "acl").held_by(Ref::named("Port_Group", "pg"), "acls"),
            Want::named("Port_Group", "pg").exactly("ports").member("ports", of_port("a")).member("ports", of_port("b")),
            port("a"),
            port("b"),
        ];
        let plan = plan(&there, "me", &wants);
        let parts = plan.parts();
        let order: Vec<String> = parts.iter().map(|part| part.at.id.to_string()).collect();
        assert_eq!(order, ["old", "a", "b", "pg", "k=acl"]);
        let (group, acl) = (&parts[3], &parts[4]);
        let uuid = Uuid::from_u128(9);
        let made = [(parts[2].makes().unwrap().to_owned(), uuid)].into();
        let alone = group.plan(&made).unwrap();
        assert!(matches!(&alone.steps[..], [Step::Insert { members, .. }] if members["ports"] == [(of_port("b"), Target::There(uuid))]), "{alone:?}");
        assert_eq!(acl.plan(&made).unwrap_err().to_string(), "cannot write ACL k=acl: there is no Port_Group pg");
    }
}
