//! `#[outbox(...)]`: which options there are, where each may stand and what it takes.

use proc_macro2::{Span, TokenTree};
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Expr, ExprLit, Ident, Lit, LitStr, Meta, Path, Token};

use crate::name;

/// All mistakes of one derive; they are reported together.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    pub(crate) fn push(&mut self, span: Span, message: impl std::fmt::Display) {
        self.add(syn::Error::new(span, message));
    }

    fn add(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    pub(crate) fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// What an attribute stands on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Struct,
    Enum,
    Variant,
    Field,
}

impl Place {
    fn noun(self) -> &'static str {
        match self {
            Place::Struct => "a struct",
            Place::Enum => "an enum",
            Place::Variant => "a variant",
            Place::Field => "a field",
        }
    }
}

use Place::{Enum, Field, Struct, Variant};

/// Every option: its name, its right form and the places where it has this form.
const OPTIONS: &[(&str, &str, &[Place])] = &[
    ("aggregate", r#"aggregate = "order""#, &[Struct, Enum]),
    ("topic", r#"topic = "orders""#, &[Struct, Enum, Variant]),
    ("event_type", r#"event_type = "order.created""#, &[Struct, Variant]),
    ("version", "version = 2", &[Struct, Enum, Variant]),
    ("aggregate_id", r#"aggregate_id = "field""#, &[Struct, Enum, Variant]),
    ("aggregate_id", "aggregate_id", &[Field]),
    ("dedup_key", r#"dedup_key = "field""#, &[Struct, Enum, Variant]),
    ("dedup_key", "dedup_key", &[Field]),
    ("header", r#"header("name" = self.value)"#, &[Struct, Enum, Variant]),
    ("header", r#"header = "name""#, &[Field]),
    ("header", "header", &[Field]),
    ("delegate", "delegate", &[Variant]),
    ("crate", r#"crate = "path::to::outbox_diesel""#, &[Struct, Enum]),
];

/// What the attributes of one place say.
#[derive(Default)]
pub(crate) struct Options {
    /// Which options are there and where, well formed or not: a mistake is reported once.
    given: Vec<(&'static str, Span)>,
    pub(crate) krate: Option<Path>,
    pub(crate) aggregate: Option<LitStr>,
    pub(crate) topic: Option<LitStr>,
    pub(crate) event_type: Option<LitStr>,
    pub(crate) version: Option<i16>,
    pub(crate) aggregate_id: Option<Source>,
    pub(crate) dedup_key: Option<Source>,
    pub(crate) headers: Vec<Header>,
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

/// What follows an option's name.
enum Argument {
    Nothing,
    Value(Expr),
    List(Punctuated<Expr, Token![,]>),
}

impl Options {
    pub(crate) fn parse(attributes: &[Attribute], place: Place, errors: &mut Errors) -> Self {
        let mut options = Options::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("outbox")) {
            if !matches!(attribute.meta, Meta::List(_)) {
                let message = format!("expected `#[outbox(...)]`; {}", allowed(place));
                errors.push(attribute.meta.span(), message);
                continue;
            }
            let parsed = attribute.parse_args_with(|input: ParseStream<'_>| {
                options.parse_list(input, place, errors);
                Ok(())
            });
            if let Err(error) = parsed {
                errors.add(error);
            }
        }
        options
    }

    /// Where an option was given, well formed or not.
    pub(crate) fn given(&self, name: &str) -> Option<Span> {
        self.given.iter().find(|(given, _)| *given == name).map(|&(_, span)| span)
    }

    /// The names of the options given.
    pub(crate) fn all_given(&self) -> impl Iterator<Item = (&'static str, Span)> {
        self.given.iter().copied()
    }

    fn parse_list(&mut self, input: ParseStream<'_>, place: Place, errors: &mut Errors) {
        while !input.is_empty() {
            if let Err(error) = self.parse_option(input, place, errors) {
                errors.add(error);
                // One mistake must not hide the next: go on behind the comma.
                while !input.is_empty() && !input.peek(Token![,]) {
                    let _ = input.parse::<TokenTree>();
                }
            }
            let _ = input.parse::<Option<Token![,]>>();
        }
    }

    fn parse_option(
        &mut self,
        input: ParseStream<'_>,
        place: Place,
        errors: &mut Errors,
    ) -> syn::Result<()> {
        let word = Ident::parse_any(input).map_err(|error| {
            syn::Error::new(
                error.span(),
                format!("expected the name of an option; {}", allowed(place)),
            )
        })?;
        let (name, form) = self.look_up(&word, place)?;
        let repeated = self.given(name).is_some() && (name != "header" || place == Field);
        self.given.push((name, word.span()));
        let argument = parse_argument(input)
            .map_err(|error| syn::Error::new(error.span(), format!("{error}; write `{form}`")))?;
        if repeated {
            return Err(syn::Error::new(
                word.span(),
                format!("`{name}` is given twice; keep one `{form}`"),
            ));
        }
        self.set(name, form, word.span(), argument, place, errors)
    }

    /// The option that `word` names here. A misspelt or misplaced one counts as given, so that
    /// nothing is reported as missing that the user meant to give.
    fn look_up(&mut self, word: &Ident, place: Place) -> syn::Result<(&'static str, &'static str)> {
        let text = word.unraw().to_string();
        let here = |name: &str| {
            OPTIONS.iter().find(|(known, _, places)| *known == name && places.contains(&place))
        };
        if let Some((name, form, _)) = here(&text) {
            return Ok((name, form));
        }
        let meant = name::closest(&text, OPTIONS.iter().map(|(name, ..)| *name));
        self.given.extend(meant.map(|meant| (meant, word.span())));
        let text = match (meant, meant.and_then(here)) {
            (Some(known), None) if known == text => {
                format!("`{text}` does not go on {};", place.noun())
            }
            (_, Some((_, form, _))) => format!("unknown option `{text}`, did you mean `{form}`?"),
            _ => format!("unknown option `{text}`;"),
        };
        Err(syn::Error::new(word.span(), format!("{text} {}", allowed(place))))
    }

    fn set(
        &mut self,
        name: &'static str,
        form: &str,
        span: Span,
        argument: Argument,
        place: Place,
        errors: &mut Errors,
    ) -> syn::Result<()> {
        match (name, argument) {
            ("aggregate_id" | "dedup_key", Argument::Nothing) if place == Field => {}
            ("delegate", Argument::Nothing) => {}
            ("header", Argument::Nothing) if place == Field => {
                self.headers.push(Header { name: None, value: None, span });
            }
            ("header", Argument::Value(value)) if place == Field => {
                let name = checked_name(&value, name, form, errors)?;
                self.headers.push(Header { span: name.span(), name: Some(name), value: None });
            }
            ("header", Argument::List(pairs)) if place != Field && !pairs.is_empty() => {
                for pair in pairs {
                    let header = header_pair(pair, form, errors)?;
                    self.reject_repeated(&header, errors);
                    self.headers.push(header);
                }
            }
            ("aggregate", Argument::Value(value)) => {
                self.aggregate = Some(checked_name(&value, name, form, errors)?);
            }
            ("topic", Argument::Value(value)) => {
                self.topic = Some(checked_name(&value, name, form, errors)?);
            }
            ("event_type", Argument::Value(value)) => {
                self.event_type = Some(checked_name(&value, name, form, errors)?);
            }
            ("version", Argument::Value(value)) => self.version = Some(version(&value)?),
            ("crate", Argument::Value(value)) => {
                let path = string(&value, name, form)?;
                self.krate = Some(path.parse_with(Path::parse_mod_style).map_err(|_| {
                    syn::Error::new(path.span(), format!("not a path; write `{form}`"))
                })?);
            }
            ("aggregate_id", argument) if place != Field => {
                self.aggregate_id = Some(source(argument, name, span)?);
            }
            ("dedup_key", argument) if place != Field => {
                self.dedup_key = Some(source(argument, name, span)?);
            }
            (name, argument) => {
                let (span, what) = match argument {
                    Argument::Nothing => (span, "needs a value".to_owned()),
                    Argument::Value(value) => (value.span(), "does not take `= ...`".to_owned()),
                    Argument::List(list) if list.is_empty() => (span, "is empty".to_owned()),
                    Argument::List(list) => (list.span(), "does not take a list".to_owned()),
                };
                let place = place.noun();
                return Err(syn::Error::new(
                    span,
                    format!("`{name}` {what}; on {place} write `{form}`"),
                ));
            }
        }
        Ok(())
    }
}

impl Options {
    fn reject_repeated(&self, header: &Header, errors: &mut Errors) {
        let name = header.name.as_ref().map(LitStr::value).unwrap_or_default();
        if self.header_names().any(|known| known == name) {
            errors.push(header.span, format!("header `{name}` is given twice; keep one"));
        }
    }

    /// The names that the headers are given, which on a field may be none.
    pub(crate) fn header_names(&self) -> impl Iterator<Item = String> {
        self.headers.iter().filter_map(|header| header.name.as_ref()).map(LitStr::value)
    }
}

fn allowed(place: Place) -> String {
    let forms: Vec<String> = OPTIONS
        .iter()
        .filter(|(_, _, places)| places.contains(&place))
        .map(|(_, form, _)| format!("`{form}`"))
        .collect();
    format!("{} takes {}", place.noun(), forms.join(", "))
}

fn parse_argument(input: ParseStream<'_>) -> syn::Result<Argument> {
    let argument = if input.peek(Token![=]) {
        input.parse::<Token![=]>()?;
        Argument::Value(input.parse()?)
    } else if input.peek(syn::token::Paren) {
        let list;
        syn::parenthesized!(list in input);
        Argument::List(Punctuated::parse_terminated(&list)?)
    } else {
        Argument::Nothing
    };
    if input.is_empty() || input.peek(Token![,]) {
        return Ok(argument);
    }
    Err(input.error("expected `,` between options"))
}

/// Takes off the invisible groups that `macro_rules` puts around `$value:expr`.
fn ungrouped(mut value: &Expr) -> &Expr {
    while let Expr::Group(group) = value {
        value = &group.expr;
    }
    value
}

fn string(value: &Expr, name: &str, form: &str) -> syn::Result<LitStr> {
    match ungrouped(value) {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(text.clone()),
        other => Err(syn::Error::new_spanned(
            other,
            format!("`{name}` takes a string literal; write `{form}`"),
        )),
    }
}

fn checked_name(value: &Expr, name: &str, form: &str, errors: &mut Errors) -> syn::Result<LitStr> {
    let text = string(value, name, form)?;
    if let Some(fault) = name::fault(&text.value()) {
        errors.push(text.span(), format!("`{name}` {fault}, as in `{form}`"));
    }
    Ok(text)
}

fn version(value: &Expr) -> syn::Result<i16> {
    let parsed = match ungrouped(value) {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse::<i16>().ok(),
        _ => None,
    };
    parsed.filter(|&version| version >= 1).ok_or_else(|| {
        let message = "`version` is an integer from 1 to 32767; write `version = 2`";
        syn::Error::new_spanned(value, message)
    })
}

fn header_pair(pair: Expr, form: &str, errors: &mut Errors) -> syn::Result<Header> {
    match pair {
        Expr::Assign(pair) => {
            let name = checked_name(&pair.left, "header", form, errors)?;
            Ok(Header { span: name.span(), name: Some(name), value: Some(*pair.right) })
        }
        other => Err(syn::Error::new_spanned(
            other,
            format!("a header is a name and a value; write `{form}`"),
        )),
    }
}

fn source(argument: Argument, name: &str, span: Span) -> syn::Result<Source> {
    let forms = format!(
        "`{name} = \"field\"`, `{name}(\"field\", \"field\")` or `{name} = self.expression()`"
    );
    match argument {
        Argument::Nothing => {
            Err(syn::Error::new(span, format!("`{name}` needs a value here; write {forms}")))
        }
        Argument::List(fields) if fields.is_empty() => {
            Err(syn::Error::new(span, format!("`{name}` names no field; write {forms}")))
        }
        Argument::List(fields) => fields
            .iter()
            .map(|field| string(field, name, &format!("{name}(\"field\", \"field\")")))
            .collect::<syn::Result<_>>()
            .map(Source::Fields),
        Argument::Value(value) => match ungrouped(&value) {
            Expr::Lit(ExprLit { lit: Lit::Str(field), .. }) => {
                Ok(Source::Fields(vec![field.clone()]))
            }
            Expr::Lit(literal) => {
                let text = quote::quote!(#literal);
                Err(syn::Error::new_spanned(
                    literal,
                    format!(
                        "a bare literal is neither a field nor an expression; write \
                         `{name} = \"{text}\"` for the field {text}, \
                         or `{name} = {{ {text} }}` for a constant"
                    ),
                ))
            }
            _ => Ok(Source::Expr(value)),
        },
    }
}
