//! Costs at run time: the rows of upstream's TestCelCostStability.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube_cel::shape::{Form, ListKind, Object, Property};
use kube_cel::{Env, PER_CALL_LIMIT, Shape, Value, Variables};
use serde_json::{Value as Json, json};

fn simple(form: Form) -> Shape {
    Shape::new(form, 1_000_000, 1)
}

fn list(items: Shape, kind: ListKind) -> Shape {
    simple(Form::List(Arc::new(items), kind))
}

fn map(values: Shape) -> Shape {
    simple(Form::Map(Arc::new(values)))
}

fn object(fields: Vec<(&str, Shape)>) -> Shape {
    let fields: BTreeMap<String, Property> =
        fields.into_iter().map(|(name, shape)| (name.to_owned(), Property { name: name.to_owned(), shape: Arc::new(shape) })).collect();
    let name = format!("object{}", fields.keys().cloned().collect::<Vec<_>>().join("_"));
    simple(Form::Object(Arc::new(Object { name, fields })))
}

fn costs(shape: &Shape, value: &Json, rows: &[(&str, u64)]) {
    let env = Env::new().with("self", shape.ty());
    for (rule, cost) in rows {
        let program = env.compile(rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
        let variables = Variables::new().with("self", Value::shaped(value, shape).unwrap());
        let evaluated = program.evaluate(&variables, PER_CALL_LIMIT);
        let result = evaluated.result.map(|value| kube_cel::display(&value));
        assert_eq!((result, evaluated.cost), (Ok("true".to_owned()), *cost), "{rule}");
    }
}

#[test]
fn scalars_cost_as_upstream() {
    let shape = object(vec![("val1", simple(Form::Int)), ("val2", simple(Form::Int)), ("val4", simple(Form::Double))]);
    let value = json!({"val1": 5, "val2": 5, "val4": 10.0});
    costs(
        &shape,
        &value,
        &[
            ("self.val1 == self.val2", 5),
            ("type(self.val1) == int", 4),
            ("self.val1 + 1 == 5 + 1", 5),
            ("double(self.val1) < self.val4", 6),
            ("self.val1 < int(self.val4)", 6),
            ("double(5) < 10.0", 1),
            ("double(self.val1) < 10.0", 4),
        ],
    );
}

#[test]
fn strings_cost_as_upstream() {
    let shape = object(vec![
        ("val1", simple(Form::String)),
        ("bytes", simple(Form::Bytes)),
        ("duration", simple(Form::Duration)),
        ("date", simple(Form::Date)),
    ]);
    let value = json!({"val1": "Rook takes 👑", "bytes": "QUI=", "duration": "1h2m3s4ms", "date": "1997-07-16"});
    costs(
        &shape,
        &value,
        &[
            ("self.val1.startsWith('Rook')", 4),
            ("!self.val1.startsWith('knight')", 5),
            ("self.val1.matches('^[^0-9]*$')", 8),
            ("!self.val1.matches('^[0-9]*$')", 7),
            ("size(self.val1) == 12", 4),
            ("self.val1.charAt(3) == 'k'", 4),
            ("self.val1.indexOf('o') == 1", 4),
            ("self.val1.indexOf('o', 2) == 2", 4),
            ("self.val1.replace(' ', 'x') == 'Rookxtakesx👑'", 7),
            ("self.val1.split(' ') == ['Rook', 'takes', '👑']", 6),
            ("self.val1.substring(5) == 'takes 👑'", 5),
            ("self.val1.substring(4, 10).trim() == 'takes'", 6),
            ("self.val1.lowerAscii() == self.val1.lowerAscii()", 10),
            ("'%e'.format([3.14]) == '3.140000×10⁰⁰'", 3),
            ("'%o %o %o'.format([7, 8, 9]) == '7 10 11'", 2),
            ("self.bytes == b'AB'", 3),
            ("size(self.bytes) == 2", 4),
            ("self.duration == duration('1h2m') + duration('3s4ms')", 4),
            ("self.duration.getHours() == 1", 4),
            ("self.date.getDate() == 16", 4),
            ("type(self.date) == google.protobuf.Timestamp", 4),
        ],
    );
}

#[test]
fn lists_cost_as_upstream() {
    let strings = || list(simple(Form::String), ListKind::Set);
    let shape = object(vec![
        ("val1", list(simple(Form::Int), ListKind::Atomic)),
        ("val2", list(simple(Form::Int), ListKind::Atomic)),
        ("set1", strings()),
        ("set2", strings()),
    ]);
    let value = json!({"val1": [1, 2, 3], "val2": [1, 2, 3], "set1": ["a", "b", "c"], "set2": ["a", "c", "b"]});
    costs(
        &shape,
        &value,
        &[
            ("1 in self.val1", 5),
            ("self.val2[0] in self.val1", 8),
            ("!(0 in self.val1)", 6),
            ("self.val1 + self.val2 == [1, 2, 3, 1, 2, 3]", 6),
            ("self.val1 + [4, 5] == [1, 2, 3, 4, 5]", 4),
            ("has(self.val1)", 1),
            ("has(self.val1) && has(self.val2)", 2),
            ("self.set1 == ['c', 'b', 'a']", 3),
            ("self.set1 == self.set2", 5),
            ("self.set1 + self.set2 == ['a', 'b', 'c']", 6),
            ("self.set1 + ['c', 'd'] == ['a', 'b', 'c', 'd']", 4),
            ("sets.contains(self.set1, ['a'])", 6),
            ("sets.equivalent(self.set1, ['a', 'b', 'c'])", 21),
            ("sets.intersects(self.set1, ['a'])", 6),
        ],
    );
}

#[test]
fn keyed_lists_cost_as_upstream() {
    let item = object(vec![("k", simple(Form::String)), ("v", simple(Form::String))]);
    let lists = list(list(item, ListKind::Map(vec!["k".into()])), ListKind::Atomic);
    let shape = object(vec![("objs", lists)]);
    let pair = |k: &str, v: &str| json!({"k": k, "v": v});
    let value = json!({"objs": [
        [pair("a", "1"), pair("b", "2")],
        [pair("b", "2"), pair("a", "1")],
        [pair("b", "3"), pair("a", "1")],
        [pair("c", "4")],
    ]});
    costs(
        &shape,
        &value,
        &[
            ("self.objs[0] == self.objs[1]", 7),
            ("self.objs[0] + self.objs[2] == self.objs[2]", 11),
            ("self.objs[0] == [self.objs[0][1], self.objs[0][0]]", 22),
            ("self.objs[2] + [self.objs[0][0], self.objs[0][1]] == self.objs[0]", 26),
            ("size(self.objs[0] + [self.objs[3][0]]) == 3", 20),
        ],
    );
}

#[test]
fn maps_and_folds_cost_as_upstream() {
    let inner = object(vec![("c1", simple(Form::Int))]);
    let shape = object(vec![
        ("val", map(simple(Form::Int))),
        ("a1", object(vec![("b1", inner), ("d2", object(vec![("e2", simple(Form::Int))]))])),
        ("enum", simple(Form::String)),
    ]);
    let value = json!({"val": {"b": 1, "d": 2}, "a1": {"b1": {"c1": 4}}, "enum": "Pending"});
    costs(
        &shape,
        &value,
        &[
            ("self.enum in ['Pending', 'Available']", 2),
            ("has(self.a1.b1.c1)", 3),
            ("!(has(self.a1.d2) && has(self.a1.d2.e2))", 3),
            ("!('a' in self.val)", 4),
            ("!has(self.val.a)", 3),
            ("self.val.all(k, self.val[k] > 0)", 17),
            ("!self.val.exists(k, self.val[k] == 3)", 20),
            ("self.val.exists_one(k, self.val[k] == 2)", 14),
            ("!self.val.exists_one(k, self.val[k] > 0)", 17),
            ("size(self.val.filter(k, self.val[k] > 1)) == 1", 26),
            ("self.val.all(k, v, v > 0)", 13),
            ("!self.val.exists(k, v, v == 3)", 16),
            ("self.val.existsOne(k, v, v == 2)", 10),
            ("self.val.transformMap(k, v, v > 1, v + 1).size() == 1", 14),
            ("self.val.transformMap(k, v, v + 1).size() == 2", 15),
            ("self.val.transformMapEntry(k, v, v > 1, {k + '2': v + 1}).size() == 1", 45),
            ("self.val.transformMapEntry(k, v, {k + '2': v + 1}).size() == 2", 77),
        ],
    );
}
