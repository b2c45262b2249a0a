//! What follows an option's name, read as what the option takes.

use proc_macro2::Span;
use quote::ToTokens;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, Lit, LitStr, Path, Token, Type};

use crate::name;
use crate::style::{self, Style};

/// All mistakes of one derive; they are reported together.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    pub(crate) fn push(&mut self, span: Span, message: impl std::fmt::Display) {
        self.add(syn::Error::new(span, message));
    }

    pub(crate) fn add(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    pub(crate) fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// Where a value comes from, as a struct, enum or variant says it.
pub(crate) enum Source {
    Fields(Vec<LitStr>),
    Expr(Expr),
}

pub(crate) struct Header {
    /// `None` on a field: the header is named like it.
    pub(crate) name: Option<LitStr>,
    /// `None` on a field: the header holds it.
    pub(crate) value: Option<Expr>,
    pub(crate) span: Span,
}

/// An older version, and the type of its payload.
pub(crate) struct Upcast {
    pub(crate) version: i16,
    pub(crate) from: Type,
    pub(crate) span: Span,
}

/// An option's argument, and what to say if it is not of the right form.
pub(crate) struct Argument {
    pub(crate) option: &'static str,
    form: &'static str,
    span: Span,
    given: Given,
}

enum Given {
    Nothing,
    Value(Expr),
    List(Punctuated<Expr, Token![,]>),
}

impl Argument {
    pub(crate) fn parse(
        input: ParseStream<'_>,
        option: &'static str,
        form: &'static str,
        span: Span,
    ) -> syn::Result<Self> {
        let given = Given::parse(input)
            .map_err(|error| syn::Error::new(error.span(), format!("{error}; write `{form}`")))?;
        Ok(Argument { option, form, span, given })
    }

    pub(crate) fn nothing(self) -> syn::Result<()> {
        match self.given {
            Given::Nothing => Ok(()),
            _ => Err(self.wrong()),
        }
    }

    pub(crate) fn name(self, errors: &mut Errors) -> syn::Result<LitStr> {
        match &self.given {
            Given::Value(value) => self.checked_name(value, errors),
            _ => Err(self.wrong()),
        }
    }

    pub(crate) fn version(self) -> syn::Result<i16> {
        let Given::Value(value) = &self.given else { return Err(self.wrong()) };
        self.version_number(value)
    }

    pub(crate) fn upcasts(self) -> syn::Result<Vec<Upcast>> {
        let pairs = match &self.given {
            Given::List(pairs) if !pairs.is_empty() => pairs,
            _ => return Err(self.wrong()),
        };
        let upcast = |pair: &Expr| {
            let Expr::Assign(assign) = pair else {
                let form = self.form;
                let message = format!("an upcast is a version and a type; write `{form}`");
                return Err(syn::Error::new_spanned(pair, message));
            };
            let version = self.version_number(&assign.left)?;
            let from = syn::parse2(ungrouped(&assign.right).to_token_stream()).map_err(|_| {
                let message = format!("not a type; write `{}`", self.form);
                syn::Error::new_spanned(&assign.right, message)
            })?;
            Ok(Upcast { version, from, span: assign.left.span() })
        };
        pairs.iter().map(upcast).collect()
    }

    fn version_number(&self, value: &Expr) -> syn::Result<i16> {
        let parsed = match ungrouped(value) {
            Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse::<i16>().ok(),
            _ => None,
        };
        parsed.filter(|&version| version >= 1).ok_or_else(|| {
            let form = self.form;
            let message = format!("a version is an integer from 1 to 32767; write `{form}`");
            syn::Error::new_spanned(value, message)
        })
    }

    pub(crate) fn style(self) -> syn::Result<Style> {
        let Given::Value(value) = &self.given else { return Err(self.wrong()) };
        let word = self.string(value)?;
        Style::of_word(&word.value()).ok_or_else(|| {
            let words = style::WORDS.map(|(word, _)| word);
            let meant = match name::closest(&word.value(), words) {
                Some(meant) => format!(", did you mean `\"{meant}\"`?"),
                None => ";".to_owned(),
            };
            let (word, all) = (word.value(), words.join("\"`, `\""));
            let message = format!("unknown style `{word}`{meant} there are `\"{all}\"`");
            syn::Error::new_spanned(value, message)
        })
    }

    /// A number of bytes, or a constant expression that is one.
    pub(crate) fn limit(self) -> syn::Result<Expr> {
        let Given::Value(value) = &self.given else { return Err(self.wrong()) };
        let valid = match ungrouped(value) {
            Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => {
                number.base10_parse::<u64>().is_ok_and(|bytes| bytes > 0)
            }
            Expr::Lit(_) | Expr::Unary(_) => false,
            _ => true,
        };
        if valid {
            return Ok(value.clone());
        }
        let message = format!("`payload_limit` is a number of bytes from 1; write `{}`", self.form);
        Err(syn::Error::new_spanned(value, message))
    }

    pub(crate) fn path(self) -> syn::Result<Path> {
        let Given::Value(value) = &self.given else { return Err(self.wrong()) };
        let path = self.string(value)?;
        path.parse_with(Path::parse_mod_style)
            .map_err(|_| syn::Error::new(path.span(), format!("not a path; write `{}`", self.form)))
    }

    pub(crate) fn header_of_field(self, errors: &mut Errors) -> syn::Result<Header> {
        match &self.given {
            Given::Nothing => Ok(Header { name: None, value: None, span: self.span }),
            Given::Value(value) => {
                let name = self.checked_name(value, errors)?;
                Ok(Header { span: name.span(), name: Some(name), value: None })
            }
            Given::List(_) => Err(self.wrong()),
        }
    }

    pub(crate) fn headers(self, errors: &mut Errors) -> syn::Result<Vec<Header>> {
        let pairs = match &self.given {
            Given::List(pairs) if !pairs.is_empty() => pairs,
            _ => return Err(self.wrong()),
        };
        let header = |pair: &Expr| match pair {
            Expr::Assign(pair) => {
                let name = self.checked_name(&pair.left, errors)?;
                let value = Some(pair.right.as_ref().clone());
                Ok(Header { span: name.span(), name: Some(name), value })
            }
            other => {
                let message = format!("a header is a name and a value; write `{}`", self.form);
                Err(syn::Error::new_spanned(other, message))
            }
        };
        pairs.iter().map(header).collect()
    }

    pub(crate) fn source(self) -> syn::Result<Source> {
        let value = match &self.given {
            Given::Value(value) => value,
            Given::List(fields) if !fields.is_empty() => {
                let fields = fields.iter().map(|field| self.string(field));
                return fields.collect::<syn::Result<_>>().map(Source::Fields);
            }
            Given::Nothing | Given::List(_) => {
                let option = self.option;
                let message = format!(
                    "`{option}` names no field; write `{option} = \"field\"`, \
                     `{option}(\"field\", \"field\")` or `{option} = self.expression()`"
                );
                return Err(syn::Error::new(self.span, message));
            }
        };
        match ungrouped(value) {
            Expr::Lit(ExprLit { lit: Lit::Str(field), .. }) => {
                Ok(Source::Fields(vec![field.clone()]))
            }
            Expr::Lit(literal) => {
                let (option, text) = (self.option, quote::quote!(#literal));
                let message = format!(
                    "a bare literal is neither a field nor an expression; write \
                     `{option} = \"{text}\"` for the field {text}, or \
                     `{option} = {{ {text} }}` for a constant"
                );
                Err(syn::Error::new_spanned(literal, message))
            }
            _ => Ok(Source::Expr(value.clone())),
        }
    }

    fn checked_name(&self, value: &Expr, errors: &mut Errors) -> syn::Result<LitStr> {
        let text = self.string(value)?;
        if let Some(fault) = name::fault(&text.value()) {
            let (option, form) = (self.option, self.form);
            errors.push(text.span(), format!("`{option}` {fault}, as in `{form}`"));
        }
        Ok(text)
    }

    fn string(&self, value: &Expr) -> syn::Result<LitStr> {
        match ungrouped(value) {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(text.clone()),
            other => {
                let (option, form) = (self.option, self.form);
                let message = format!("`{option}` takes a string literal; write `{form}`");
                Err(syn::Error::new_spanned(other, message))
            }
        }
    }

    fn wrong(&self) -> syn::Error {
        let (span, what) = match &self.given {
            Given::Nothing => (self.span, "needs a value"),
            Given::Value(value) => (value.span(), "does not take `= ...` here"),
            Given::List(list) if list.is_empty() => (self.span, "is empty"),
            Given::List(list) => (list.span(), "does not take a list here"),
        };
        syn::Error::new(span, format!("`{}` {what}; write `{}`", self.option, self.form))
    }
}

impl Given {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let given = if input.peek(Token![=]) {
            input.parse::<Token![=]>()?;
            Given::Value(input.parse()?)
        } else if input.peek(syn::token::Paren) {
            let list;
            syn::parenthesized!(list in input);
            Given::List(Punctuated::parse_terminated(&list)?)
        } else {
            Given::Nothing
        };
        if input.is_empty() || input.peek(Token![,]) {
            return Ok(given);
        }
        Err(input.error("expected `,` between options"))
    }
}

/// Takes off the invisible groups that `macro_rules` puts around `$value:expr`.
fn ungrouped(mut value: &Expr) -> &Expr {
    while let Expr::Group(group) = value {
        value = &group.expr;
    }
    value
}
