//! Expansion of macros into folds.

use crate::ast::{ACCUMULATOR, Expr, Fold, Kind, Literal};
use crate::lexer::Problem;
use crate::parser::Parser;

type Expanded = Result<Expr, Problem>;

/// The call `target.function(args)`, expanded when it is one of a macro.
pub fn expand(parser: &mut Parser, at: usize, target: Option<Expr>, function: String, mut args: Vec<Expr>) -> Expanded {
    let Some(target) = target else {
        if function == "has" && args.len() == 1 {
            let arg = args.remove(0);
            return has(parser, at, arg);
        }
        return parser.node(at, Kind::Call { target: None, function, args });
    };
    match (function.as_str(), args.len()) {
        ("all" | "exists" | "exists_one" | "existsOne", 2 | 3) => quantifier(parser, at, &function, target, args),
        ("map", 2 | 3) | ("filter", 2) => map(parser, at, function == "filter", target, args),
        ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => transform(parser, at, &function, target, args),
        ("sortBy", 2) => sort_by(parser, at, target, args),
        ("optMap" | "optFlatMap", 2) => opt_map(parser, at, &function, target, args),
        _ => parser.node(at, Kind::Call { target: Some(Box::new(target)), function, args }),
    }
}

fn has(parser: &mut Parser, at: usize, arg: Expr) -> Expanded {
    match arg.kind {
        Kind::Select { operand, field, test: false } => parser.node(at, Kind::Select { operand, field, test: true }),
        _ => {
            let at = parser.position(arg.id);
            Err(Problem { at, message: "invalid argument to has() macro".into() })
        }
    }
}

fn name(parser: &Parser, arg: &Expr, otherwise: &str) -> Result<String, Problem> {
    let at = parser.position(arg.id);
    match &arg.kind {
        Kind::Ident(name) if name == "__result__" => Err(Problem { at, message: "iteration variable overwrites accumulator variable".into() }),
        Kind::Ident(name) => Ok(name.clone()),
        _ => Err(Problem { at, message: otherwise.into() }),
    }
}

/// The variables of a macro: one, or two when the macro has an argument more.
fn names(parser: &Parser, args: &mut Vec<Expr>, two: bool) -> Result<(String, Option<String>), Problem> {
    let simple = "argument must be a simple name";
    let first = name(parser, &args.remove(0), simple)?;
    if !two {
        return Ok((first, None));
    }
    let arg = args.remove(0);
    let second = name(parser, &arg, simple)?;
    if first == second {
        let at = parser.position(arg.id);
        return Err(Problem { at, message: format!("duplicate variable name: {first}") });
    }
    Ok((first, Some(second)))
}

/// Makes nodes at one place.
struct Maker<'a> {
    parser: &'a mut Parser,
    at: usize,
}

impl Maker<'_> {
    fn literal(&mut self, literal: Literal) -> Expanded {
        self.parser.node(self.at, Kind::Literal(literal))
    }

    fn ident(&mut self, name: &str) -> Expanded {
        self.parser.node(self.at, Kind::Ident(name.into()))
    }

    fn accumulator(&mut self) -> Expanded {
        self.ident(ACCUMULATOR)
    }

    fn call(&mut self, function: &str, args: Vec<Expr>) -> Expanded {
        self.parser.call(self.at, function, args)
    }

    fn list(&mut self, elements: Vec<Expr>) -> Expanded {
        let elements = elements.into_iter().map(|element| (element, false)).collect();
        self.parser.node(self.at, Kind::List(elements))
    }

    fn member(&mut self, target: Expr, function: &str) -> Expanded {
        let kind = Kind::Call { target: Some(Box::new(target)), function: function.into(), args: Vec::new() };
        self.parser.node(self.at, kind)
    }

    /// `filter ? step : accumulator`, or the step alone.
    fn filtered(&mut self, filter: Option<Expr>, step: Expr) -> Expanded {
        let Some(filter) = filter else { return Ok(step) };
        let accumulator = self.accumulator()?;
        self.call("_?_:_", vec![filter, step, accumulator])
    }

    fn fold(&mut self, fold: Fold) -> Expanded {
        self.parser.node(self.at, Kind::Fold(Box::new(fold)))
    }
}

fn quantifier(parser: &mut Parser, at: usize, function: &str, range: Expr, mut args: Vec<Expr>) -> Expanded {
    let two = args.len() == 3;
    let (variable, second) = names(parser, &mut args, two)?;
    let predicate = args.remove(0);
    let mut make = Maker { parser, at };
    let accumulator = make.accumulator()?;
    let (init, condition, step, result) = match function {
        "all" => {
            let init = make.literal(Literal::Bool(true))?;
            let condition = make.call("@not_strictly_false", vec![accumulator])?;
            let accumulator = make.accumulator()?;
            let step = make.call("_&&_", vec![accumulator, predicate])?;
            (init, condition, step, make.accumulator()?)
        }
        "exists" => {
            let init = make.literal(Literal::Bool(false))?;
            let not = make.call("!_", vec![accumulator])?;
            let condition = make.call("@not_strictly_false", vec![not])?;
            let accumulator = make.accumulator()?;
            let step = make.call("_||_", vec![accumulator, predicate])?;
            (init, condition, step, make.accumulator()?)
        }
        _ => {
            let init = make.literal(Literal::Int(0))?;
            let condition = make.literal(Literal::Bool(true))?;
            let one = make.literal(Literal::Int(1))?;
            let more = make.call("_+_", vec![accumulator, one])?;
            let step = make.filtered(Some(predicate), more)?;
            let accumulator = make.accumulator()?;
            let one = make.literal(Literal::Int(1))?;
            (init, condition, step, make.call("_==_", vec![accumulator, one])?)
        }
    };
    make.fold(Fold { variable, second, range, accumulator: ACCUMULATOR.into(), init, condition, step, result })
}

fn map(parser: &mut Parser, at: usize, filter: bool, range: Expr, mut args: Vec<Expr>) -> Expanded {
    let variable = name(parser, &args[0], "argument is not an identifier")?;
    let element = args.remove(0);
    let (predicate, element) = match (filter, args.len()) {
        (true, _) => (Some(args.remove(0)), element),
        (false, 2) => (Some(args.remove(0)), args.remove(0)),
        (false, _) => (None, args.remove(0)),
    };
    list_fold(parser, at, (variable, None), range, predicate, element)
}

fn list_fold(
    parser: &mut Parser,
    at: usize,
    (variable, second): (String, Option<String>),
    range: Expr,
    predicate: Option<Expr>,
    element: Expr,
) -> Expanded {
    let mut make = Maker { parser, at };
    let init = make.list(Vec::new())?;
    let condition = make.literal(Literal::Bool(true))?;
    let accumulator = make.accumulator()?;
    let one = make.list(vec![element])?;
    let step = make.call("_+_", vec![accumulator, one])?;
    let step = make.filtered(predicate, step)?;
    let result = make.accumulator()?;
    make.fold(Fold { variable, second, range, accumulator: ACCUMULATOR.into(), init, condition, step, result })
}

fn transform(parser: &mut Parser, at: usize, function: &str, range: Expr, mut args: Vec<Expr>) -> Expanded {
    let (variable, second) = names(parser, &mut args, true)?;
    let predicate = if args.len() == 2 { Some(args.remove(0)) } else { None };
    let transform = args.remove(0);
    if function == "transformList" {
        return list_fold(parser, at, (variable, second), range, predicate, transform);
    }
    let mut make = Maker { parser, at };
    let init = make.parser.node(at, Kind::Map(Vec::new()))?;
    let condition = make.literal(Literal::Bool(true))?;
    let accumulator = make.accumulator()?;
    let insert = if function == "transformMap" {
        let key = make.ident(&variable)?;
        vec![accumulator, key, transform]
    } else {
        vec![accumulator, transform]
    };
    let step = make.call("cel.@mapInsert", insert)?;
    let step = make.filtered(predicate, step)?;
    let result = make.accumulator()?;
    make.fold(Fold { variable, second, range, accumulator: ACCUMULATOR.into(), init, condition, step, result })
}

fn opt_map(parser: &mut Parser, at: usize, function: &str, target: Expr, mut args: Vec<Expr>) -> Expanded {
    let variable = match &args[0].kind {
        Kind::Ident(name) => name.clone(),
        _ => {
            let at = parser.position(args[0].id);
            return Err(Problem { at, message: format!("{function}() variable name must be a simple identifier") });
        }
    };
    let mapped = args.remove(1);
    let again = parser.copy(&target)?;
    let mut make = Maker { parser, at };
    let present = make.member(target, "hasValue")?;
    let value = make.member(again, "value")?;
    let range = make.list(Vec::new())?;
    let condition = make.literal(Literal::Bool(false))?;
    let step = make.ident(&variable)?;
    let fold =
        make.fold(Fold { variable: "#unused".into(), second: None, range, accumulator: variable, init: value, condition, step, result: mapped })?;
    let some = if function == "optMap" { make.call("optional.of", vec![fold])? } else { fold };
    let none = make.call("optional.none", Vec::new())?;
    make.call("_?_:_", vec![present, some, none])
}

/// `list.sortBy(x, key)`: the list is bound to a name, sorted by the list of its keys.
fn sort_by(parser: &mut Parser, at: usize, target: Expr, args: Vec<Expr>) -> Expanded {
    const INPUT: &str = "@__sortBy_input__";
    let bound = parser.node(at, Kind::Ident(INPUT.into()))?;
    let keys = map(parser, at, false, bound, args)?;
    let mut make = Maker { parser, at };
    let bound = make.ident(INPUT)?;
    let kind = Kind::Call { target: Some(Box::new(bound)), function: "@sortByAssociatedKeys".into(), args: vec![keys] };
    let result = make.parser.node(at, kind)?;
    let range = make.list(Vec::new())?;
    let condition = make.literal(Literal::Bool(false))?;
    let step = make.ident(INPUT)?;
    let variable = "#unused".into();
    make.fold(Fold { variable, second: None, range, accumulator: INPUT.into(), init: target, condition, step, result })
}
