use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::{ChainType, Data, DataType, Expr, Family, Hook, Key, Verdict, rule};
use super::*;

/// Data by key.
type Elements = BTreeMap<Vec<u8>, Option<Data>>;

/// A table as nf_tables holds it: it refuses what nf_tables refuses.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    sets: BTreeMap<String, (SetSpec, Elements)>,
    chains: BTreeMap<String, (Chain, Vec<Rule>)>,
}

fn target(verdict: &Verdict) -> Option<&str> {
    match verdict {
        Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
        _ => None,
    }
}

/// The chains and sets that a rule names.
fn named(rule: &Rule) -> (Vec<&str>, Vec<&str>) {
    let (mut chains, mut sets) = (Vec::new(), Vec::new());
    for expr in &rule.exprs {
        match expr {
            Expr::Verdict(verdict) => chains.extend(target(verdict)),
            Expr::Lookup { set, .. } | Expr::LookupVerdict { set, .. } => sets.push(set.as_str()),
            _ => {}
        }
    }
    (chains, sets)
}

impl Model {
    fn of(desired: &Desired) -> Self {
        let elements = |set: &DesiredSet| set.elements.iter().flatten().map(|e| (e.key.clone(), e.data.clone())).collect();
        Self {
            sets: desired.sets.iter().map(|(name, set)| (name.clone(), (set.spec.clone(), elements(set)))).collect(),
            chains: desired.chains.iter().map(|(name, chain)| (name.clone(), (chain.chain.clone(), chain.rules.clone()))).collect(),
        }
    }

    fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.chains.values().flat_map(|(_, rules)| rules)
    }

    fn uses_chain(&self, chain: &str) -> bool {
        let by_element = |data: &Option<Data>| matches!(data, Some(Data::Verdict(verdict)) if target(verdict) == Some(chain));
        self.rules().any(|rule| named(rule).0.contains(&chain)) || self.sets.values().any(|(_, elements)| elements.values().any(by_element))
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::AddTable | Operation::DestroyTable | Operation::DeleteRule(..) => panic!("not in these plans: {operation:?}"),
            Operation::AddSet(spec) => {
                let name = spec.name.clone();
                assert_eq!(self.sets.entry(name).or_insert_with(|| (spec.clone(), BTreeMap::new())).0, spec);
            }
            Operation::AddChain(chain) => {
                let name = chain.name.clone();
                assert_eq!(self.chains.entry(name).or_insert_with(|| (chain.clone(), Vec::new())).0, chain);
            }
            Operation::FlushChain(chain) => self.chains.get_mut(&chain).expect("the chain is there").1.clear(),
            Operation::AddRule(chain, rule) => {
                let (chains, sets) = named(&rule);
                assert!(chains.into_iter().all(|name| self.chains.contains_key(name)) && sets.into_iter().all(|name| self.sets.contains_key(name)));
                self.chains.get_mut(&chain).expect("the chain is there").1.push(rule);
            }
            Operation::DeleteElements(set, elements) => {
                let there = &mut self.sets.get_mut(&set).expect("the set is there").1;
                elements.iter().for_each(|element| assert!(there.remove(&element.key).is_some(), "{set}: {element:?} is there"));
            }
            Operation::AddElements(set, elements) => {
                for element in elements {
                    if let Some(Data::Verdict(verdict)) = &element.data {
                        assert!(target(verdict).is_none_or(|chain| self.chains.contains_key(chain)));
                    }
                    let there = &mut self.sets.get_mut(&set).expect("the set is there").1;
                    assert_eq!(there.insert(element.key, element.data), None, "{set}: nobody adds what is there");
                }
            }
            Operation::DeleteChain(chain) => {
                let (_, rules) = self.chains.remove(&chain).expect("the chain is there");
                assert!(rules.is_empty() && !self.uses_chain(&chain), "{chain} is empty and unused");
            }
            Operation::FlushSet(set) => self.sets.get_mut(&set).expect("the set is there").1.clear(),
            Operation::DeleteSet(set) => {
                assert!(self.sets.remove(&set).is_some() && !self.rules().any(|rule| named(rule).1.contains(&set.as_str())), "{set} is unused");
            }
        }
    }

    /// The elements of a set; none where there is no such set.
    fn elements(&self, set: &str) -> Elements {
        self.sets.get(set).map(|(_, elements)| elements.clone()).unwrap_or_default()
    }
}

fn table() -> Table {
    Table::new(Family::Ip, "t")
}

fn chain(n: usize) -> Chain {
    let name = format!("chain-{n}");
    if n.is_multiple_of(2) { Chain::base(name, ChainType::Filter, Hook::Input, n as i32) } else { Chain::regular(name) }
}

fn set(n: usize) -> SetSpec {
    SetSpec::map(format!("set-{n}"), [DataType::InetService], [DataType::Mark])
}

fn verdicts() -> SetSpec {
    SetSpec::vmap("verdicts", [DataType::InetService])
}

prop_compose! {
    /// Chains 0 to 4, of which the odd ones have no hook; sets 0 to 3 of that rank, the last one with rules; a verdict map.
    fn tables()(
        chains in prop::collection::btree_map(0usize..5, prop::collection::vec((0usize..4, 0usize..5), 0..3), 0..5),
        sets in prop::collection::btree_map(0usize..4, prop::collection::btree_map(0u16..5, 0u32..3, 0..5), 0..4),
        verdicts_to in prop::collection::btree_map(0u16..4, 0usize..5, 0..4),
    ) -> Desired {
        let mut desired = Desired::new(table());
        for (n, rules) in &chains {
            // Jumps lead to later chains without a hook, so that there are no loops.
            let regular = |to: &usize| to > n && to % 2 == 1 && chains.contains_key(to);
            let rules = rules.iter().filter(|(set, _)| sets.contains_key(set)).map(|(set, to)| {
                let matching = rule().load_dport(0).lookup(format!("set-{set}"), 0);
                if regular(to) { matching.jump(format!("chain-{to}")) } else { matching.drop() }
            });
            desired.chain(chain(*n), rules);
        }
        for (n, elements) in &sets {
            let elements = elements.iter().map(|(key, data)| Element::new(Key::new().port(*key)).data(Key::new().mark(*data)));
            let set = desired.set(set(*n)).rank(*n as u8).extend(elements);
            if *n == 3 {
                set.with_rules();
            }
        }
        let regular = verdicts_to.iter().filter(|(_, to)| **to % 2 == 1 && chains.contains_key(to));
        let elements: Vec<_> = regular.map(|(key, to)| Element::new(Key::new().port(*key)).data(Verdict::Goto(format!("chain-{to}")))).collect();
        if !elements.is_empty() {
            desired.set(verdicts()).extend(elements);
        }
        desired
    }
}

fn units(plan: Plan) -> Vec<Unit> {
    let mut all = Vec::new();
    plan.units(|unit| {
        all.push(unit);
        Ok(())
    })
    .unwrap();
    all
}

proptest! {
    #[test]
    fn a_plan_leads_from_any_table_to_any_other_and_the_kernel_refuses_nothing(before in tables(), after in tables()) {
        let (mut model, from, to) = (Model::of(&before), Model::of(&before), Model::of(&after));
        let plan = Plan::between(vec![before.clone()], vec![after.clone()]);
        prop_assert_eq!(plan.is_empty(), from == to);
        for unit in units(plan) {
            unit.into_iter().for_each(|(_, operation)| model.apply(operation));
            // Between transactions nothing is gone that stays or changes.
            for name in from.sets.keys().filter(|name| to.sets.contains_key(*name)) {
                let (now, old, new) = (model.elements(name), from.elements(name), to.elements(name));
                for key in old.keys().filter(|key| new.contains_key(*key)) {
                    prop_assert!(now.get(key) == old.get(key) || now.get(key) == new.get(key));
                }
            }
            for (name, (_, old)) in from.chains.iter().filter(|(name, _)| to.chains.contains_key(*name)) {
                prop_assert!(model.chains[name].1 == *old || model.chains[name].1 == to.chains[name].1);
            }
        }
        prop_assert_eq!(model, to);
        prop_assert!(Plan::between(vec![after.clone()], vec![after]).is_empty());
    }

    #[test]
    fn element_changes_hold_what_differs_in_order(before in prop::collection::btree_map(0u16..40, 0u32..3, 0..30), after in prop::collection::btree_map(0u16..40, 0u32..3, 0..30)) {
        let entries = |map: &BTreeMap<u16, u32>| map.iter().rev().map(|(k, d)| Element::new(Key::new().port(*k)).data(Key::new().mark(*d))).collect::<Vec<_>>();
        let change = ElementChange::between([entries(&before), entries(&before)].concat(), entries(&after));
        let only = |a: &BTreeMap<u16, u32>, b: &BTreeMap<u16, u32>| a.iter().filter(|(k, d)| b.get(k) != Some(d)).map(|(k, d)| (*k, *d)).collect();
        let (remove, add): (BTreeMap<u16, u32>, BTreeMap<u16, u32>) = (only(&before, &after), only(&after, &before));
        let in_order = |map| { let mut list: Vec<Element> = entries(map); list.reverse(); list };
        prop_assert_eq!(change, ElementChange { remove: in_order(&remove), add: in_order(&add) });
    }
}

#[test]
fn ranks_order_additions_and_removals() {
    let fill = |data: u32, keys: std::ops::Range<u16>| {
        let mut desired = Desired::new(table());
        desired.chain(chain(0), [rule().mark(data, u32::MAX).drop()]);
        for rank in 0..3 {
            let element = |key| Element::new(Key::new().port(key)).data(Key::new().mark(1));
            desired.set(set(rank.into())).rank(rank).extend(keys.clone().map(element));
        }
        vec![desired]
    };
    let order: Vec<String> = units(Plan::between(fill(1, 0..2), fill(2, 1..3)))
        .into_iter()
        .map(|unit| match &unit[0].1 {
            Operation::AddElements(set, elements) => format!("+{set}:{}", elements.len()),
            Operation::DeleteElements(set, elements) => format!("-{set}:{}", elements.len()),
            Operation::FlushChain(chain) => format!("~{chain}"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(order, ["+set-2:1", "+set-1:1", "~chain-0", "+set-0:1", "-set-0:1", "-set-1:1", "-set-2:1"]);
}

#[test]
fn ranges_change_in_one_unit_and_old_data_goes_with_new_data() {
    let nets = |nets: &[&str]| {
        let mut desired = Desired::new(table());
        desired.set(SetSpec::set("nets", [DataType::Ipv4Addr]).interval()).extend(nets.iter().map(|net| Element::net(net.parse().unwrap())));
        vec![desired]
    };
    let all = units(Plan::between(nets(&["10.0.0.0/8", "192.0.2.0/24"]), nets(&["10.1.0.0/16", "192.0.2.0/24"])));
    assert!(matches!(&all[..], [unit] if matches!(&unit[..], [(_, Operation::DeleteElements(..)), (_, Operation::AddElements(..))])), "{all:?}");
    let marks = |data: u32| {
        let mut desired = Desired::new(table());
        desired.set(set(1)).extend((0..1000).map(|key| Element::new(Key::new().port(key)).data(Key::new().mark(data))));
        vec![desired]
    };
    for unit in units(Plan::between(marks(1), marks(2))) {
        let keys = |operation: &Operation| match operation {
            Operation::DeleteElements(_, elements) | Operation::AddElements(_, elements) => {
                elements.iter().map(|element| element.key.clone()).collect::<BTreeSet<_>>()
            }
            other => panic!("{other:?}"),
        };
        assert!(unit.len() == 2 && keys(&unit[0].1) == keys(&unit[1].1), "{unit:?}");
    }
}

#[test]
fn parts_of_tables_use_sets_of_others() {
    let part = |elements: &[u16], used: bool| {
        let mut desired = Desired::new(table());
        let set = if used { desired.used_set(set(1)) } else { desired.set(set(1)) };
        set.extend(elements.iter().map(|key| Element::new(Key::new().port(*key)).data(Key::new().mark(1))));
        vec![desired]
    };
    let show = |plan: Plan| plan.to_string();
    assert_eq!(show(Plan::between(vec![], part(&[1], true))), "~ ip t set set-1: 0 elements go, 1 come\n");
    assert_eq!(show(Plan::between(part(&[1], true), vec![])), "~ ip t set set-1: 1 elements go, 0 come\n");
    assert_eq!(show(Plan::between(part(&[1], false), vec![])), "- ip t set set-1\n");
    assert_eq!(show(Plan::between(vec![], part(&[], false))), "+ ip t set set-1\n");
}
