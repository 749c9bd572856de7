//! Writes a plan: in one transaction, or, where the server refuses that, each row in one of its own, so that no row keeps others from theirs.

use std::collections::HashMap;

use ovsdb::{Client, Error, Operation, Outcome, Refused, Uuid};

use crate::rows::{Part, Plan, Problem};

/// Writes a plan; what of it the server refuses for the row's own sake is a problem of that row. `lock`: one that this client has to hold.
///
/// # Errors
/// Rows or the lock's holder have changed, or there is no connection. The rest of the plan was not written.
pub async fn write(client: &Client, plan: &Plan, lock: Option<&str>) -> Result<Vec<Problem>, Error> {
    match client.transact(plan.transaction(lock)).await {
        Ok(_) => Ok(Vec::new()),
        Err(Error::Refused(refused)) if is_of_the_row(&refused) => row_by_row(client, &plan.parts(), lock, refused).await,
        Err(error) => Err(error),
    }
}

fn is_of_the_row(refused: &Refused) -> bool {
    !refused.is_outdated() && !refused.is_not_owner()
}

async fn row_by_row(client: &Client, parts: &[Part], lock: Option<&str>, first: Refused) -> Result<Vec<Problem>, Error> {
    let problem = |part: &Part, refused: Refused| Problem::Refused { at: part.at.clone(), refused };
    if let [part] = parts {
        return Ok(vec![problem(part, first)]);
    }
    let (mut made, mut problems) = (HashMap::new(), Vec::new());
    for part in parts {
        let alone = match part.plan(&made) {
            Ok(alone) => alone,
            Err(missing) => {
                problems.push(*missing);
                continue;
            }
        };
        let transaction = alone.transaction(lock);
        let inserts = transaction.operations.iter().position(|operation| matches!(operation, Operation::Insert { .. }));
        match client.transact(transaction).await {
            Ok(outcomes) => {
                if let (Some(name), Some(Outcome::Row(uuid))) = (part.makes(), inserts.and_then(|at| outcomes.get(at))) {
                    made.insert(name.to_owned(), Uuid::clone(uuid));
                }
            }
            Err(Error::Refused(refused)) if is_of_the_row(&refused) => problems.push(problem(part, refused)),
            Err(error) => return Err(error),
        }
    }
    Ok(problems)
}
