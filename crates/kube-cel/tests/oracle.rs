//! Random expressions against an evaluator that shares nothing with the crate: it walks the tree of which the source was printed, with the
//! language definition's rules for errors (https://github.com/google/cel-spec/blob/master/doc/langdef.md).

use kube_cel::{Env, PER_CALL_LIMIT, Type, Value, Variables};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// What an expression yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Int,
    Bool,
    Text,
    List,
}

#[derive(Clone, Debug)]
enum Expr {
    Int(i64),
    Bool(bool),
    Text(String),
    List(Vec<Expr>),
    /// A variable, or the one of the macro that many levels up.
    Name(String),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
    Size(Box<Expr>),
    Index(Box<Expr>, Box<Expr>),
    Call(&'static str, Box<Expr>, Box<Expr>),
    /// all, exists, exists_one, filter, map: of a list, with a variable of its own.
    Macro(&'static str, Box<Expr>, String, Box<Expr>),
}

/// Draws trees from the bytes that proptest gives, so that it can make failing ones smaller.
struct Draw<'a> {
    bytes: &'a [u8],
    names: Vec<String>,
}

impl Draw<'_> {
    fn below(&mut self, limit: usize) -> usize {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        usize::from(*first) % limit
    }

    fn pair(&mut self, kind: Kind, depth: usize) -> (Box<Expr>, Box<Expr>) {
        (self.boxed(kind, depth), self.boxed(kind, depth))
    }

    fn boxed(&mut self, kind: Kind, depth: usize) -> Box<Expr> {
        Box::new(self.expr(kind, depth))
    }

    fn binary(&mut self, operators: &[&'static str], kind: Kind, depth: usize) -> Expr {
        let operator = operators[self.below(operators.len())];
        let (left, right) = self.pair(kind, depth);
        Expr::Binary(operator, left, right)
    }

    fn over(&mut self, names: &[&'static str], body: Kind, depth: usize) -> Expr {
        let (name, list) = (names[self.below(names.len())], self.boxed(Kind::List, depth));
        let own = format!("i{}", self.names.len());
        self.names.push(own.clone());
        let body = self.boxed(body, depth);
        self.names.pop();
        Expr::Macro(name, list, own, body)
    }

    fn expr(&mut self, kind: Kind, depth: usize) -> Expr {
        if depth == 0 {
            return self.leaf(kind);
        }
        let depth = depth - 1;
        match (kind, self.below(8)) {
            (_, 0) => self.leaf(kind),
            (_, 1) => Expr::Choice(self.boxed(Kind::Bool, depth), self.boxed(kind, depth), self.boxed(kind, depth)),
            (Kind::Int, 2) => Expr::Negative(self.boxed(Kind::Int, depth)),
            (Kind::Int, 3) => Expr::Size(if self.below(2) == 0 { self.boxed(Kind::List, depth) } else { self.boxed(Kind::Text, depth) }),
            (Kind::Int, 4) => Expr::Index(self.boxed(Kind::List, depth), self.boxed(Kind::Int, depth)),
            (Kind::Int, _) => self.binary(&["+", "-", "*", "/", "%"], Kind::Int, depth),
            (Kind::Bool, 2) => Expr::Not(self.boxed(Kind::Bool, depth)),
            (Kind::Bool, 3) => self.binary(&["==", "!=", "<", "<=", ">", ">="], Kind::Int, depth),
            (Kind::Bool, 4) => self.binary(&["==", "!=", "<", "<=", ">", ">="], Kind::Text, depth),
            (Kind::Bool, 5) => Expr::Binary("in", self.boxed(Kind::Int, depth), self.boxed(Kind::List, depth)),
            (Kind::Bool, 6) => self.over(&["all", "exists", "exists_one"], Kind::Bool, depth),
            (Kind::Bool, 7) if self.below(2) == 0 => {
                let name = ["startsWith", "endsWith", "contains"][self.below(3)];
                let (text, part) = self.pair(Kind::Text, depth);
                Expr::Call(name, text, part)
            }
            (Kind::Bool, _) => self.binary(&["&&", "||"], Kind::Bool, depth),
            (Kind::Text, _) => self.binary(&["+"], Kind::Text, depth),
            (Kind::List, 2) => self.over(&["filter"], Kind::Bool, depth),
            (Kind::List, 3) => self.over(&["map"], Kind::Int, depth),
            // An empty literal has no type: an overload that is chosen for it fixes one.
            (Kind::List, 4) => Expr::List((0..=self.below(3)).map(|_| self.expr(Kind::Int, depth)).collect()),
            (Kind::List, _) => self.binary(&["+"], Kind::List, depth),
        }
    }

    fn leaf(&mut self, kind: Kind) -> Expr {
        let names = self.names.clone();
        match (kind, self.below(4)) {
            (Kind::Int, 0) => Expr::Name(["a", "b"][self.below(2)].into()),
            (Kind::Int, 1) if !names.is_empty() => Expr::Name(names[self.below(names.len())].clone()),
            (Kind::Int, _) => Expr::Int(i64::try_from(self.below(7)).unwrap() - 3),
            (Kind::Bool, 0) => Expr::Name("p".into()),
            (Kind::Bool, _) => Expr::Bool(self.below(2) == 0),
            (Kind::Text, 0) => Expr::Name("s".into()),
            (Kind::Text, _) => Expr::Text(["", "a", "b", "ab", "\u{fc}", "\u{1f600}"][self.below(6)].into()),
            (Kind::List, 0) => Expr::List(vec![Expr::Int(2)]),
            (Kind::List, 1) => Expr::List(vec![Expr::Int(1), Expr::Int(0)]),
            (Kind::List, _) => Expr::Name("l".into()),
        }
    }
}

fn print(expr: &Expr) -> String {
    match expr {
        Expr::Int(number) => format!("({number})"),
        Expr::Bool(value) => value.to_string(),
        Expr::Text(text) => format!("'{text}'"),
        Expr::List(items) => format!("[{}]", items.iter().map(print).collect::<Vec<_>>().join(", ")),
        Expr::Name(name) => name.clone(),
        Expr::Binary(operator, left, right) => format!("({} {operator} {})", print(left), print(right)),
        Expr::Not(inner) => format!("!{}", print(inner)),
        Expr::Negative(inner) => format!("(-({}))", print(inner)),
        Expr::Choice(condition, yes, no) => format!("({} ? {} : {})", print(condition), print(yes), print(no)),
        Expr::Size(inner) => format!("size({})", print(inner)),
        Expr::Index(list, index) => format!("{}[{}]", print(list), print(index)),
        Expr::Call(name, text, part) => format!("{}.{name}({})", print(text), print(part)),
        Expr::Macro(name, list, own, body) => format!("{}.{name}({own}, {})", print(list), print(body)),
    }
}

/// Variables, the innermost last; an error is an error, whichever.
type Scope<'a> = Vec<(&'a str, Json)>;
type Outcome = Result<Json, ()>;

fn int(value: &Json) -> i64 {
    value.as_i64().unwrap()
}

fn text(value: &Json) -> &str {
    value.as_str().unwrap()
}

fn list(value: &Json) -> &[Json] {
    value.as_array().unwrap()
}

fn checked(value: Option<i64>) -> Outcome {
    value.map(Json::from).ok_or(())
}

fn evaluate<'a>(expr: &'a Expr, scope: &mut Scope<'a>) -> Outcome {
    Ok(match expr {
        Expr::Int(number) => (*number).into(),
        Expr::Bool(value) => (*value).into(),
        Expr::Text(text) => text.as_str().into(),
        Expr::List(items) => items.iter().map(|item| evaluate(item, scope)).collect::<Result<Vec<_>, ()>>()?.into(),
        Expr::Name(name) => scope.iter().rev().find(|(own, _)| own == name).unwrap().1.clone(),
        Expr::Binary("&&", left, right) => return either(left, right, false, scope),
        Expr::Binary("||", left, right) => return either(left, right, true, scope),
        Expr::Binary(operator, left, right) => {
            let (left, right) = (evaluate(left, scope)?, evaluate(right, scope)?);
            return calculate(operator, &left, &right);
        }
        Expr::Not(inner) => (!evaluate(inner, scope)?.as_bool().unwrap()).into(),
        Expr::Negative(inner) => return checked(int(&evaluate(inner, scope)?).checked_neg()),
        Expr::Choice(condition, yes, no) => {
            let chosen = if evaluate(condition, scope)? == true { yes } else { no };
            return evaluate(chosen, scope);
        }
        Expr::Size(inner) => match evaluate(inner, scope)? {
            Json::String(text) => text.chars().count().into(),
            other => list(&other).len().into(),
        },
        Expr::Index(items, index) => {
            let (items, index) = (evaluate(items, scope)?, int(&evaluate(index, scope)?));
            return usize::try_from(index).ok().and_then(|index| list(&items).get(index).cloned()).ok_or(());
        }
        Expr::Call(name, whole, part) => {
            let (whole, part) = (evaluate(whole, scope)?, evaluate(part, scope)?);
            let (whole, part) = (text(&whole), text(&part));
            match *name {
                "startsWith" => whole.starts_with(part).into(),
                "endsWith" => whole.ends_with(part).into(),
                _ => whole.contains(part).into(),
            }
        }
        Expr::Macro(name, items, own, body) => {
            let items = evaluate(items, scope)?;
            let outcomes: Vec<(Json, Outcome)> = list(&items)
                .iter()
                .map(|item| {
                    scope.push((own.as_str(), item.clone()));
                    let outcome = evaluate(body, scope);
                    scope.pop();
                    (item.clone(), outcome)
                })
                .collect();
            return fold(name, outcomes);
        }
    })
}

/// One side that decides does so whatever the other is, an error too.
fn either<'a>(left: &'a Expr, right: &'a Expr, decides: bool, scope: &mut Scope<'a>) -> Outcome {
    decide([evaluate(left, scope), evaluate(right, scope)].into_iter(), decides)
}

fn decide(sides: impl Iterator<Item = Outcome>, decides: bool) -> Outcome {
    let sides: Vec<Outcome> = sides.collect();
    if sides.contains(&Ok(decides.into())) {
        return Ok(decides.into());
    }
    sides.into_iter().find(Result::is_err).unwrap_or(Ok((!decides).into()))
}

fn calculate(operator: &str, left: &Json, right: &Json) -> Outcome {
    let order = || match (left, right) {
        (Json::String(left), Json::String(right)) => left.cmp(right),
        _ => int(left).cmp(&int(right)),
    };
    Ok(match operator {
        "+" => match (left, right) {
            (Json::String(left), Json::String(right)) => format!("{left}{right}").into(),
            (Json::Array(left), Json::Array(right)) => [left.clone(), right.clone()].concat().into(),
            _ => return checked(int(left).checked_add(int(right))),
        },
        "-" => return checked(int(left).checked_sub(int(right))),
        "*" => return checked(int(left).checked_mul(int(right))),
        "/" => return checked(int(left).checked_div(int(right))),
        "%" => return checked(int(left).checked_rem(int(right))),
        "==" => (left == right).into(),
        "!=" => (left != right).into(),
        "<" => order().is_lt().into(),
        "<=" => order().is_le().into(),
        ">" => order().is_gt().into(),
        ">=" => order().is_ge().into(),
        "in" => list(right).contains(left).into(),
        other => unreachable!("{other}"),
    })
}

fn fold(name: &str, outcomes: Vec<(Json, Outcome)>) -> Outcome {
    match name {
        "all" => decide(outcomes.into_iter().map(|(_, outcome)| outcome), false),
        "exists" => decide(outcomes.into_iter().map(|(_, outcome)| outcome), true),
        "map" => outcomes.into_iter().map(|(_, outcome)| outcome).collect::<Result<Vec<_>, ()>>().map(Json::from),
        _ => {
            let mut kept = Vec::new();
            for (item, outcome) in outcomes {
                if outcome? == true {
                    kept.push(item);
                }
            }
            Ok(if name == "exists_one" { (kept.len() == 1).into() } else { kept.into() })
        }
    }
}

fn numbers() -> impl Strategy<Value = i64> {
    prop_oneof![3 => -3..4_i64, 1 => Just(i64::MAX), 1 => Just(i64::MIN)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn expressions_yield_what_the_oracle_says(
        bytes in prop::collection::vec(any::<u8>(), 1..60),
        kind in prop::sample::select(vec![Kind::Int, Kind::Bool, Kind::Text, Kind::List]),
        a in numbers(), b in numbers(), p in any::<bool>(), s in "[ab\u{fc}]{0,3}", l in prop::collection::vec(numbers(), 0..4),
    ) {
        let tree = Draw { bytes: &bytes, names: Vec::new() }.expr(kind, 4);
        let source = print(&tree);
        let env = Env::new().with("a", Type::Int).with("b", Type::Int).with("p", Type::Bool).with("s", Type::String).with("l", Type::list(Type::Int));
        let program = env.compile(&source).map_err(|error| TestCaseError::fail(format!("{source}: {error}")))?;
        let numbers = json!(l);
        let variables = Variables::new()
            .with("a", Value::Int(a))
            .with("b", Value::Int(b))
            .with("p", Value::Bool(p))
            .with("s", Value::str(&s))
            .with("l", Value::json(&numbers));
        let found = program.evaluate(&variables, PER_CALL_LIMIT).result;
        let mut scope: Scope<'_> = vec![("a", a.into()), ("b", b.into()), ("p", p.into()), ("s", s.as_str().into()), ("l", numbers.clone())];
        match (found, evaluate(&tree, &mut scope)) {
            (Ok(value), Ok(expected)) => prop_assert_eq!(value.to_json(), Some(expected), "{} with a={} b={} p={} s={} l={:?}", source, a, b, p, s, l),
            (Err(_), Err(())) => {}
            (Ok(value), Err(())) => prop_assert!(false, "{source} with a={a} b={b} p={p} s={s} l={l:?} is an error, not {:?}", value.to_json()),
            (Err(error), Ok(expected)) => prop_assert!(false, "{source} with a={a} b={b} p={p} s={s} l={l:?} is {expected}, not {error}"),
        }
    }
}
