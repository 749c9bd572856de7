use std::net::IpAddr;

use super::*;
use crate::fact::{Forwarding, Hop, Place, Port};

fn compartment() -> Fact {
    Fact::Compartment(Guid::NIL)
}

fn bridge() -> Fact {
    Link::Bridge { name: "hns1".into(), forwarding: Forwarding::Routed }.into()
}

fn blocked() -> Fact {
    Link::Blocked { port: "ep1".into() }.into()
}

fn firewall() -> Fact {
    let place = Place::Inside { compartment: Guid::NIL, interface: "eth0".into(), host: false };
    Fact::Firewall(AccessList { port: "ep1".into(), place, inbound: true, addresses: Vec::new(), tiers: Vec::new() })
}

fn guarded() -> Fact {
    Rule::Guarded { bridge: "hns1".into() }.into()
}

fn host_address() -> Fact {
    Rule::HostAddress(IpAddr::from([192, 168, 1, 2])).into()
}

fn all() -> BTreeSet<Fact> {
    [host_address(), guarded(), firewall(), blocked(), bridge(), compartment()].into()
}

fn replace(shared: &mut Shared, before: &BTreeSet<Fact>, after: &BTreeSet<Fact>) -> Plan {
    shared.replace(&[(before.clone(), after.clone())])
}

#[test]
fn facts_are_made_by_kind_and_removed_in_reverse() {
    let in_order = vec![compartment(), bridge(), blocked(), firewall(), guarded(), host_address()];
    let (mut shared, none) = (Shared::default(), BTreeSet::new());
    let made = replace(&mut shared, &none, &all());
    assert_eq!(made, Plan { remove: Vec::new(), add: in_order.clone() });
    let removed = replace(&mut shared, &all(), &none);
    assert_eq!(removed, Plan { remove: in_order.into_iter().rev().collect(), add: Vec::new() });
    assert_eq!(removed, made.inverse());
}

#[test]
fn steps_remove_before_they_add_and_leave_rules_to_the_transaction() {
    let plan = Plan { remove: vec![host_address(), firewall(), bridge()], add: vec![compartment(), blocked(), guarded()] };
    let expected = [Step::Remove(&plan.remove[1]), Step::Remove(&plan.remove[2]), Step::Add(&plan.add[0]), Step::Add(&plan.add[1])];
    assert_eq!(plan.steps().collect::<Vec<_>>(), expected);
    assert_eq!(plan.removed_rules().map(ToString::to_string).collect::<Vec<_>>(), ["192.168.1.2 is the host's"]);
    assert_eq!(plan.added_rules().map(ToString::to_string).collect::<Vec<_>>(), ["hns1 reaches the host on host paths alone"]);
}

#[test]
fn inverse_of_a_plan_undoes_its_steps_in_reverse() {
    let plan = Plan { remove: vec![firewall(), bridge()], add: vec![compartment(), blocked()] };
    let inverse = plan.inverse();
    assert_eq!(inverse, Plan { remove: vec![blocked(), compartment()], add: vec![bridge(), firewall()] });
    assert_eq!(inverse.inverse(), plan);
    assert!(plan.steps().zip(inverse.steps().collect::<Vec<_>>().into_iter().rev()).count() == 4);
    assert_eq!(Step::Add(&plan.add[0]).inverse(), Step::Remove(&plan.add[0]));
    assert_eq!(Step::Remove(&plan.remove[0]).inverse().inverse(), Step::Remove(&plan.remove[0]));
}

#[test]
fn shared_facts_go_with_their_last_object() {
    let (mut shared, none, one) = (Shared::default(), BTreeSet::new(), BTreeSet::from([bridge(), host_address()]));
    assert_eq!(replace(&mut shared, &none, &one).add.len(), 2);
    assert!(replace(&mut shared, &none, &one).is_empty(), "another object needs the same");
    assert!(replace(&mut shared, &one, &none).is_empty());
    assert_eq!(replace(&mut shared, &one, &none).remove, [host_address(), bridge()]);
    let hop = Hop { address: IpAddr::from([10, 0, 0, 1]), neighbour: true };
    assert!([Link::Hop(hop).into(), Rule::HopAddress(hop).into()].iter().all(Fact::is_shared));
    assert_eq!(shared, Shared::default());
}

#[test]
fn facts_that_one_object_hands_to_another_stay() {
    let (mut shared, none) = (Shared::default(), BTreeSet::new());
    let one = BTreeSet::from([guarded()]);
    let plan = shared.replace(&[(one.clone(), none.clone()), (none, one)]);
    assert!(plan.is_empty(), "{plan}");
}

#[test]
fn facts_are_no_larger_than_a_port() {
    // Sets of thousands of facts are built at start and for each change.
    assert!(size_of::<Fact>() <= size_of::<Port>() + 8, "{} and {}", size_of::<Fact>(), size_of::<Port>());
}
