//! Estimated costs: rows of upstream's TestCelEstimatedCostStability.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube_cel::shape::{Form, ListKind, Object, Property};
use kube_cel::{Env, Shape};

/// The longest string that fits into a request.
const TEXT: u64 = 3 * 1024 * 1024 - 2;

fn object(fields: Vec<(&str, Shape)>) -> Shape {
    let fields: BTreeMap<String, Property> =
        fields.into_iter().map(|(name, shape)| (name.to_owned(), Property { name: name.to_owned(), shape: Arc::new(shape) })).collect();
    let name = format!("object{}", fields.keys().cloned().collect::<Vec<_>>().join("_"));
    Shape::new(Form::Object(Arc::new(Object { name, fields })), 0, 2)
}

fn text() -> Shape {
    Shape::new(Form::String, TEXT, 2)
}

fn estimates(shape: &Shape, rows: &[(&str, u64)]) {
    let env = Env::new().with("self", shape.ty());
    for (rule, cost) in rows {
        let program = env.compile(rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
        assert_eq!(program.estimate(shape).max, *cost, "{rule}");
    }
}

#[test]
fn scalars_are_estimated_as_upstream() {
    let int = || Shape::new(Form::Int, 0, 1);
    let shape = object(vec![
        ("val1", int()),
        ("val2", int()),
        ("val4", Shape::new(Form::Double, 0, 1)),
        ("duration", Shape::new(Form::Duration, 32, 3)),
        ("bytes", Shape::new(Form::Bytes, TEXT, 2)),
        ("other", Shape::new(Form::Bytes, TEXT, 2)),
        ("enum", Shape::new(Form::String, 9, 2)),
    ]);
    estimates(
        &shape,
        &[
            ("self.val1 == self.val2", 4),
            ("type(self.val1) == int", 4),
            ("self.val1 + 1 == 5 + 1", 5),
            ("double(self.val1) < self.val4", 6),
            ("double(5) < 10.0", 2),
            ("self.duration == duration('1h2m') + duration('3s4ms')", 6),
            ("self.bytes == self.other", 314_577),
            ("self.bytes == b'AB'", 3),
            ("self.enum in ['Pending', 'Available']", 14),
        ],
    );
}

#[test]
fn strings_are_estimated_as_upstream() {
    estimates(
        &object(vec![("val1", text()), ("val2", text())]),
        &[
            ("self.val1.startsWith('Rook')", 3),
            ("!self.val1.startsWith('knight')", 4),
            ("self.val1.matches('^[^0-9]*$')", 943_721),
            ("!self.val1.matches('^[0-9]*$')", 629_149),
            ("size(self.val1) == 12", 4),
            ("self.val1.indexOf('o', 2) == 2", 314_576),
            ("self.val1.replace(' ', 'x') == 'Rookxtakesx👑'", 629_150),
            ("self.val1.split(' ') == ['Rook', 'takes', '👑']", 629_159),
            ("self.val1.substring(5) == 'takes 👑'", 314_576),
            ("self.val1.substring(4, 10).trim() == 'takes'", 629_149),
            ("self.val1.lowerAscii() == self.val1.lowerAscii()", 943_723),
            ("isQuantity(self.val1)", 314_575),
            ("quantity(self.val1).isLessThan(quantity(self.val2))", 629_151),
            ("quantity('200M').compareTo(quantity('0.2G')) == 0", 4),
            ("optional.of('a') != optional.of('b')", 1_844_674_407_370_955_266),
            ("optional.of('a').optMap(v, v == 'value').hasValue()", 18),
            ("optional.of([1, 2, 3, 4, 5]).optMap(v, v.size()).hasValue()", 38),
        ],
    );
}

#[test]
fn a_fold_over_an_unbounded_list_is_expensive() {
    let items = |max| Shape::new(Form::List(Arc::new(text()), ListKind::Atomic), max, 2);
    let env = |shape: &Shape| Env::new().with("self", shape.ty());
    let rule = "self.all(s, s == 'string constant')";
    let (bounded, unbounded) = (items(10), items(1_048_575));
    assert_eq!(env(&bounded).compile(rule).unwrap().estimate(&bounded).max, 10 * 6 + 2);
    assert!(env(&unbounded).compile(rule).unwrap().estimate(&unbounded).max > 6_000_000);
}
