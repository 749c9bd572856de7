//! A plan row by row: for a transaction each, where the server refuses all of them in one.

use std::collections::{HashMap, HashSet};

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
    /// The plan's rows: each comes after those that it refers to. What only goes comes last: a pod that changes its port group is in the new one,
    /// with its rules, before it leaves the old one.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut places: HashMap<&Ref, usize> = HashMap::new();
        let mut leaving: Vec<Part> = Vec::new();
        for step in &self.steps {
            if let Step::Join { at, uuid, column, rows, gone } = step
                && !gone.is_empty()
            {
                let leaves = Step::Join { at: at.clone(), uuid: *uuid, column, rows: Vec::new(), gone: gone.clone() };
                leaving.push(Part { at: at.clone(), steps: vec![leaves] });
                if rows.is_empty() {
                    continue;
                }
            }
            let place = *places.entry(step.at()).or_insert_with(|| {
                parts.push(Part { at: step.at().clone(), steps: Vec::new() });
                parts.len() - 1
            });
            let mut step = step.clone();
            if let Step::Join { gone, .. } = &mut step {
                gone.clear();
            }
            parts[place].steps.push(step);
        }
        let goes = |part: &Part| part.steps.iter().all(|step| matches!(step, Step::Remove { .. }));
        let (gone, mut rest): (Vec<Part>, Vec<Part>) = parts.into_iter().partition(goes);
        let mut ordered = Vec::new();
        while !rest.is_empty() {
            let made: HashSet<String> = rest.iter().filter_map(Part::makes).map(str::to_owned).collect();
            let waits =
                |part: &Part| part.steps.iter().flat_map(Step::targets).any(|target| matches!(target, Target::Made(name) if made.contains(name)));
            let (waiting, next): (Vec<Part>, Vec<Part>) = rest.into_iter().partition(waits);
            // Rows that refer to each other do not come about one by one.
            let stuck = next.is_empty();
            ordered.extend(next);
            rest = if stuck { Vec::new() } else { waiting };
        }
        ordered.extend(leaving);
        ordered.extend(gone);
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
                Step::Change { .. } | Step::Entries { .. } | Step::Elements { .. } | Step::Remove { .. } => {}
            }
        }
        Ok(Plan { steps, problems: Vec::new() })
    }
}

impl Step {
    /// The row that it is about.
    fn at(&self) -> &Ref {
        match self {
            Self::Insert { at, .. }
            | Self::Change { at, .. }
            | Self::Entries { at, .. }
            | Self::Elements { at, .. }
            | Self::Join { at, .. }
            | Self::Remove { at, .. } => at,
        }
    }

    fn targets(&self) -> Vec<&Target> {
        match self {
            Self::Insert { members, holder, .. } => {
                members.values().flatten().map(|(_, target)| target).chain(holder.iter().map(|(_, target, _)| target)).collect()
            }
            Self::Join { rows, .. } => rows.iter().map(|(_, target)| target).collect(),
            Self::Change { .. } | Self::Entries { .. } | Self::Elements { .. } | Self::Remove { .. } => Vec::new(),
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
        assert_eq!(order, ["a", "b", "pg", "k=acl", "old"]);
        let (group, acl) = (&parts[2], &parts[3]);
        let uuid = Uuid::from_u128(9);
        let made = [(parts[1].makes().unwrap().to_owned(), uuid)].into();
        let alone = group.plan(&made).unwrap();
        assert!(matches!(&alone.steps[..], [Step::Insert { members, .. }] if members["ports"] == [(of_port("b"), Target::There(uuid))]), "{alone:?}");
        assert_eq!(acl.plan(&made).unwrap_err().to_string(), "cannot write ACL k=acl: there is no Port_Group pg");
    }

    #[test]
    fn a_port_is_in_its_new_group_with_its_rules_before_it_leaves_the_old_one() {
        let port = "00000000-0000-0000-0000-000000000001";
        let there = replica(&json!({
            "Logical_Switch_Port": {port: {"name": "web"}},
            "Port_Group": {
                "00000000-0000-0000-0000-000000000002": {"name": "kept", "ports": ["uuid", port], "external_ids": ["map", [[OWNER, "me"]]]},
                "00000000-0000-0000-0000-000000000003": {"name": "old", "ports": ["uuid", port], "external_ids": ["map", [[OWNER, "me"]]]},
            },
        }));
        let group = |name: &str| Want::named("Port_Group", name).exactly("ports");
        let wants = [
            group("kept"),
            group("new").member("ports", Ref::named("Logical_Switch_Port", "web")),
            Want::external("ACL", "k", "acl").held_by(Ref::named("Port_Group", "new"), "acls"),
        ];
        let parts = plan(&there, "me", &wants).parts();
        let order: Vec<String> = parts.iter().map(|part| part.at.id.to_string()).collect();
        assert_eq!(order, ["new", "k=acl", "kept", "old"]);
    }
}
