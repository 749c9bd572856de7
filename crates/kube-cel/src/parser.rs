//! Parser of expressions: bounded in length, depth and number of nodes.

use crate::ast::{Entry, Expr, Field, Id, Kind, Literal, Parsed};
use crate::lexer::{self, Problem, Spanned, Token};
use crate::macros;
use crate::reserved::is_reserved;

/// Upstream's limit of an expression, in characters.
pub const MAX_LENGTH: usize = 100_000;
/// Upstream's limit of the depth of the tree.
pub const MAX_DEPTH: usize = 250;
/// Brackets within brackets: less than upstream's 250, because each takes several frames of the stack.
const MAX_NESTING: usize = 100;
/// Nodes of an expression after its macros were expanded: `optMap` doubles what it is called on.
pub const MAX_NODES: usize = 50_000;

const PRIMARY: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

pub struct Parser {
    tokens: Vec<Spanned>,
    next: usize,
    depth: usize,
    positions: Vec<usize>,
}

type Parse<T> = Result<T, Problem>;

/// Parses an expression; the problems are in the order of their places.
pub fn parse(source: &str) -> Result<Parsed, Vec<Problem>> {
    let length = source.chars().count();
    if length > MAX_LENGTH {
        let message = format!("expression code point size exceeds limit: size: {length}, limit {MAX_LENGTH}");
        return Err(vec![Problem { at: 0, message }]);
    }
    let (tokens, mut problems) = lexer::tokens(source);
    let mut parser = Parser { tokens, next: 0, depth: 0, positions: Vec::new() };
    let root = parser.expression().and_then(|root| parser.end().map(|()| root));
    match root {
        Ok(root) if problems.is_empty() => {
            if depth_of(&root, 0) > MAX_DEPTH {
                let message = format!("expression recursion limit exceeded: {MAX_DEPTH}");
                return Err(vec![Problem { at: 0, message }]);
            }
            Ok(Parsed { root, positions: parser.positions })
        }
        Ok(_) => Err(problems),
        Err(problem) => {
            problems.push(problem);
            problems.sort_by_key(|problem| problem.at);
            Err(problems)
        }
    }
}

/// Depth of the tree, not followed beyond the limit.
fn depth_of(expr: &Expr, depth: usize) -> usize {
    if depth > MAX_DEPTH {
        return depth;
    }
    let mut deepest = depth;
    let mut visit = |child: &Expr| deepest = deepest.max(depth_of(child, depth + 1));
    match &expr.kind {
        Kind::Literal(_) | Kind::Ident(_) => {}
        Kind::Select { operand, .. } => visit(operand),
        Kind::Call { target, args, .. } => {
            target.iter().for_each(|target| visit(target));
            args.iter().for_each(visit);
        }
        Kind::List(elements) => elements.iter().for_each(|(element, _)| visit(element)),
        Kind::Map(entries) => entries.iter().for_each(|entry| {
            visit(&entry.key);
            visit(&entry.value);
        }),
        Kind::Struct { fields, .. } => fields.iter().for_each(|field| visit(&field.value)),
        Kind::Fold(fold) => {
            [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result].into_iter().for_each(visit);
        }
    }
    deepest
}

impl Parser {
    pub fn node(&mut self, at: usize, kind: Kind) -> Parse<Expr> {
        if self.positions.len() >= MAX_NODES {
            return Err(Problem { at, message: format!("expression node limit exceeded: {MAX_NODES}") });
        }
        self.positions.push(at);
        Ok(Expr { id: self.positions.len() - 1, kind })
    }

    pub fn position(&self, id: Id) -> usize {
        self.positions[id]
    }

    pub fn call(&mut self, at: usize, function: &str, args: Vec<Expr>) -> Parse<Expr> {
        self.node(at, Kind::Call { target: None, function: function.into(), args })
    }

    /// The same tree again, with ids of its own.
    pub fn copy(&mut self, expr: &Expr) -> Parse<Expr> {
        let at = self.positions[expr.id];
        let mut kind = expr.kind.clone();
        match &mut kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => **operand = self.copy(operand)?,
            Kind::Call { target, args, .. } => {
                if let Some(target) = target {
                    **target = self.copy(target)?;
                }
                for arg in args {
                    *arg = self.copy(arg)?;
                }
            }
            Kind::List(elements) => {
                for (element, _) in elements {
                    *element = self.copy(element)?;
                }
            }
            Kind::Map(entries) => {
                for entry in entries {
                    entry.key = self.copy(&entry.key)?;
                    entry.value = self.copy(&entry.value)?;
                }
            }
            Kind::Struct { fields, .. } => {
                for field in fields {
                    field.value = self.copy(&field.value)?;
                }
            }
            Kind::Fold(fold) => {
                fold.range = self.copy(&fold.range)?;
                fold.init = self.copy(&fold.init)?;
                fold.condition = self.copy(&fold.condition)?;
                fold.step = self.copy(&fold.step)?;
                fold.result = self.copy(&fold.result)?;
            }
        }
        self.node(at, kind)
    }

    fn peek(&self) -> &Spanned {
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn at(&self) -> usize {
        self.peek().at
    }

    fn is(&self, operator: &str) -> bool {
        matches!(self.peek().token, Token::Op(op) if op == operator)
    }

    fn take(&mut self, operator: &str) -> bool {
        let found = self.is(operator);
        if found {
            self.next += 1;
        }
        found
    }

    fn mismatch(&self, expecting: &str) -> Problem {
        let found = self.peek();
        let message = format!("Syntax error: mismatched input '{}' expecting {expecting}", found.text);
        Problem { at: found.at, message }
    }

    fn expect(&mut self, operator: &str) -> Parse<()> {
        if self.take(operator) { Ok(()) } else { Err(self.mismatch(&format!("'{operator}'"))) }
    }

    fn end(&mut self) -> Parse<()> {
        if self.peek().token == Token::End {
            return Ok(());
        }
        // One token too many is "extraneous"; several are a mismatch.
        let last = self.tokens.get(self.next + 1).is_some_and(|next| next.token == Token::End);
        let mut problem = self.mismatch("<EOF>");
        if last {
            problem.message = problem.message.replacen("mismatched", "extraneous", 1);
        }
        Err(problem)
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parse<T>) -> Parse<T> {
        if self.depth >= MAX_NESTING {
            let message = format!("expression recursion limit exceeded: {MAX_NESTING}");
            return Err(Problem { at: self.at(), message });
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn expression(&mut self) -> Parse<Expr> {
        self.deeper(|parser| {
            let condition = parser.binary(0)?;
            if !parser.is("?") {
                return Ok(condition);
            }
            let at = parser.at();
            parser.next += 1;
            let yes = parser.binary(0)?;
            parser.expect(":")?;
            let no = parser.expression()?;
            parser.call(at, "_?_:_", vec![condition, yes, no])
        })
    }

    fn binary(&mut self, weakest: u8) -> Parse<Expr> {
        let mut left = self.unary()?;
        loop {
            let Token::Op(operator) = self.peek().token else { return Ok(left) };
            let (strength, function) = match operator {
                "||" => (0, "_||_"),
                "&&" => (1, "_&&_"),
                "<" => (2, "_<_"),
                "<=" => (2, "_<=_"),
                ">" => (2, "_>_"),
                ">=" => (2, "_>=_"),
                "==" => (2, "_==_"),
                "!=" => (2, "_!=_"),
                "in" => (2, "@in"),
                "+" => (3, "_+_"),
                "-" => (3, "_-_"),
                "*" => (4, "_*_"),
                "/" => (4, "_/_"),
                "%" => (4, "_%_"),
                _ => return Ok(left),
            };
            if strength < weakest {
                return Ok(left);
            }
            let at = self.at();
            self.next += 1;
            let right = self.binary(strength + 1)?;
            left = match left.kind {
                // Chains of the logical operators are one node, so that they nest no deeper.
                Kind::Call { target: None, function: name, mut args } if strength < 2 && name == function => {
                    args.push(right);
                    Expr { id: left.id, kind: Kind::Call { target: None, function: name, args } }
                }
                kind => self.call(at, function, vec![Expr { id: left.id, kind }, right])?,
            };
        }
    }

    fn unary(&mut self) -> Parse<Expr> {
        let at = self.at();
        for (operator, function) in [("!", "!_"), ("-", "-_")] {
            let mut count = 0;
            while self.is(operator) {
                let number = matches!(self.tokens.get(self.next + 1).map(|next| &next.token), Some(Token::Int(_) | Token::Float(_)));
                if operator == "-" && number {
                    break;
                }
                self.next += 1;
                count += 1;
            }
            if count > 0 {
                let operand = self.member()?;
                // Two of a kind cancel out.
                return if count % 2 == 0 { Ok(operand) } else { self.call(at, function, vec![operand]) };
            }
        }
        self.member()
    }

    fn member(&mut self) -> Parse<Expr> {
        let mut expr = self.primary()?;
        loop {
            let at = self.at();
            if self.take(".") {
                let optional = self.take("?");
                let name_at = self.at();
                let (name, escaped) = self.field_name()?;
                if optional {
                    let field = self.node(name_at, Kind::Literal(Literal::String(name.as_str().into())))?;
                    expr = self.call(at, "_?._", vec![expr, field])?;
                } else if !escaped && self.is("(") {
                    let open = self.at();
                    self.next += 1;
                    let args = self.arguments(")")?;
                    expr = macros::expand(self, open, Some(expr), name, args)?;
                } else {
                    expr = self.node(at, Kind::Select { operand: Box::new(expr), field: name, test: false })?;
                }
            } else if self.take("[") {
                let optional = self.take("?");
                let index = self.expression()?;
                self.expect("]")?;
                expr = self.call(at, if optional { "_[?_]" } else { "_[_]" }, vec![expr, index])?;
            } else {
                return Ok(expr);
            }
        }
    }

    fn field_name(&mut self) -> Parse<(String, bool)> {
        let named = match &self.peek().token {
            Token::Ident(name) => (name.clone(), false),
            Token::Escaped(name) => (name.clone(), true),
            _ => return Err(self.mismatch("IDENTIFIER")),
        };
        self.next += 1;
        Ok(named)
    }

    fn arguments(&mut self, close: &str) -> Parse<Vec<Expr>> {
        let mut args = Vec::new();
        if self.take(close) {
            return Ok(args);
        }
        loop {
            args.push(self.expression()?);
            if self.take(close) {
                return Ok(args);
            }
            self.expect(",")?;
        }
    }

    fn primary(&mut self) -> Parse<Expr> {
        let at = self.at();
        let token = self.peek().token.clone();
        match token {
            Token::Literal(literal) => {
                self.next += 1;
                self.node(at, Kind::Literal(literal))
            }
            Token::Int(_) | Token::Float(_) => self.number(false),
            Token::Op("-") => {
                self.next += 1;
                self.number(true)
            }
            Token::Op("(") => {
                self.next += 1;
                let inner = self.expression()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Op("[") => self.list(),
            Token::Op("{") => {
                self.next += 1;
                let entries = self.entries()?;
                self.node(at, Kind::Map(entries))
            }
            Token::Op(".") => {
                self.next += 1;
                self.named(at, ".")
            }
            Token::Ident(_) => self.named(at, ""),
            _ => Err(self.mismatch(PRIMARY)),
        }
    }

    fn number(&mut self, negative: bool) -> Parse<Expr> {
        let at = self.at();
        let sign = if negative { "-" } else { "" };
        let literal = match self.peek().token.clone() {
            Token::Float(text) => {
                let value: Option<f64> = format!("{sign}{text}").parse().ok().filter(|value: &f64| value.is_finite());
                value.map(Literal::Double).ok_or("invalid double literal")
            }
            Token::Int(text) => match text.strip_prefix("0x") {
                Some(digits) => i64::from_str_radix(&format!("{sign}{digits}"), 16),
                None => format!("{sign}{text}").parse(),
            }
            .map(Literal::Int)
            .map_err(|_| "invalid int literal"),
            _ => return Err(self.mismatch(PRIMARY)),
        };
        self.next += 1;
        let literal = literal.map_err(|message| Problem { at, message: message.into() })?;
        self.node(at, Kind::Literal(literal))
    }

    fn list(&mut self) -> Parse<Expr> {
        let at = self.at();
        self.next += 1;
        let mut elements = Vec::new();
        while !self.take("]") {
            let optional = self.take("?");
            elements.push((self.expression()?, optional));
            if !self.take(",") {
                self.expect("]")?;
                break;
            }
        }
        self.node(at, Kind::List(elements))
    }

    fn entries(&mut self) -> Parse<Vec<Entry>> {
        let mut entries = Vec::new();
        while !self.take("}") {
            let optional = self.take("?");
            let key = self.expression()?;
            self.expect(":")?;
            let value = self.expression()?;
            entries.push(Entry { key, value, optional });
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(entries)
    }

    /// A name, a global call, or the construction of a message. `lead` is `.` for names from the root.
    fn named(&mut self, at: usize, lead: &str) -> Parse<Expr> {
        let Token::Ident(name) = self.peek().token.clone() else { return Err(self.mismatch("IDENTIFIER")) };
        self.next += 1;
        if let Some(name) = self.message_name(&name) {
            let fields = self.fields()?;
            return self.node(at, Kind::Struct { name: format!("{lead}{name}"), fields });
        }
        if is_reserved(name.as_str()) {
            return Err(Problem { at, message: format!("reserved identifier: {name}") });
        }
        if self.is("(") {
            let open = self.at();
            self.next += 1;
            let args = self.arguments(")")?;
            return macros::expand(self, open, None, name, args);
        }
        self.node(at, Kind::Ident(format!("{lead}{name}")))
    }

    /// Consumes `.b.c {` after `a`, if that is what follows.
    fn message_name(&mut self, first: &str) -> Option<String> {
        let mut name = first.to_owned();
        let mut next = self.next;
        loop {
            match (&self.tokens.get(next)?.token, self.tokens.get(next + 1).map(|next| &next.token)) {
                (Token::Op("{"), _) => {
                    self.next = next + 1;
                    return Some(name);
                }
                (Token::Op("."), Some(Token::Ident(part))) => {
                    name = format!("{name}.{part}");
                    next += 2;
                }
                _ => return None,
            }
        }
    }

    fn fields(&mut self) -> Parse<Vec<Field>> {
        let mut fields = Vec::new();
        while !self.take("}") {
            let optional = self.take("?");
            let at = self.at();
            let (name, _) = self.field_name()?;
            self.expect(":")?;
            let value = self.expression()?;
            let id = self.node(at, Kind::Literal(Literal::Null))?.id;
            fields.push(Field { id, name, value, optional });
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(fields)
    }
}
