//! `#[outbox(...)]`: which options there are, where each may stand and what it takes.

use proc_macro2::{Span, TokenTree};
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::spanned::Spanned;
use syn::{Attribute, Expr, Ident, LitStr, Meta, Path, Token};

use crate::argument::{Argument, Errors, Header, Source, Upcast};
use crate::name;
use crate::style::Style;

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
    ("rename_all", r#"rename_all = "snake_case""#, &[Struct, Enum]),
    ("version", "version = 2", &[Struct, Enum, Variant]),
    ("upcast", "upcast(1 = OrderCreatedV1)", &[Struct, Variant]),
    ("aggregate_id", r#"aggregate_id = "field""#, &[Struct, Enum, Variant]),
    ("aggregate_id", "aggregate_id", &[Field]),
    ("dedup_key", r#"dedup_key = "field""#, &[Struct, Enum, Variant]),
    ("dedup_key", "dedup_key", &[Field]),
    ("header", r#"header("name" = self.value)"#, &[Struct, Enum, Variant]),
    ("header", r#"header = "name""#, &[Field]),
    ("header", "header", &[Field]),
    ("payload_limit", "payload_limit = 4096", &[Struct, Enum, Variant]),
    ("serialize_writers", "serialize_writers", &[Struct, Enum, Variant]),
    ("delegate", "delegate", &[Variant]),
    ("crate", r#"crate = "path::to::outbox_diesel""#, &[Struct, Enum]),
];

/// What the attributes of one place say.
#[derive(Default)]
pub(crate) struct Options {
    /// Which options are there and where, well formed or not: a mistake is reported once.
    given: Vec<(&'static str, Span)>,
    /// Which options a misspelt or misplaced one was meant to be.
    meant: Vec<(&'static str, Span)>,
    pub(crate) krate: Option<Path>,
    pub(crate) aggregate: Option<LitStr>,
    pub(crate) topic: Option<LitStr>,
    pub(crate) event_type: Option<LitStr>,
    pub(crate) rename_all: Option<Style>,
    pub(crate) version: Option<i16>,
    pub(crate) upcasts: Vec<Upcast>,
    pub(crate) payload_limit: Option<Expr>,
    pub(crate) aggregate_id: Option<Source>,
    pub(crate) dedup_key: Option<Source>,
    pub(crate) headers: Vec<Header>,
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

    /// Where an option was given, or meant to be.
    pub(crate) fn given(&self, name: &str) -> Option<Span> {
        let mut all = self.given.iter().chain(&self.meant);
        all.find(|(given, _)| *given == name).map(|&(_, span)| span)
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
            let message = format!("expected the name of an option; {}", allowed(place));
            syn::Error::new(error.span(), message)
        })?;
        let (name, form) = self.look_up(&word, place)?;
        let repeated = self.given.iter().any(|(given, _)| *given == name);
        self.given.push((name, word.span()));
        let argument = Argument::parse(input, name, form, word.span())?;
        if repeated && (name != "header" || place == Field) {
            let message = format!("`{name}` is given twice; keep one `{form}`");
            return Err(syn::Error::new(word.span(), message));
        }
        self.set(argument, place, errors)
    }

    /// The option that `word` names here, and its form. Nothing is later reported as missing that
    /// was meant by a misspelt or misplaced word.
    fn look_up(&mut self, word: &Ident, place: Place) -> syn::Result<(&'static str, &'static str)> {
        let text = word.unraw().to_string();
        let here = |name: &str| {
            OPTIONS.iter().find(|(known, _, places)| *known == name && places.contains(&place))
        };
        if let Some((name, form, _)) = here(&text) {
            return Ok((name, form));
        }
        let meant = name::closest(&text, OPTIONS.iter().map(|(name, ..)| *name));
        self.meant.extend(meant.map(|meant| (meant, word.span())));
        let text = match (meant, meant.and_then(here)) {
            (Some(known), None) if known == text => {
                format!("`{text}` does not go on {};", place.noun())
            }
            (_, Some((_, form, _))) => format!("unknown option `{text}`, did you mean `{form}`?"),
            _ => format!("unknown option `{text}`;"),
        };
        Err(syn::Error::new(word.span(), format!("{text} {}", allowed(place))))
    }

    fn set(&mut self, argument: Argument, place: Place, errors: &mut Errors) -> syn::Result<()> {
        match (argument.option, place) {
            ("aggregate", _) => self.aggregate = Some(argument.name(errors)?),
            ("topic", _) => self.topic = Some(argument.name(errors)?),
            ("event_type", _) => self.event_type = Some(argument.name(errors)?),
            ("rename_all", _) => self.rename_all = Some(argument.style()?),
            ("version", _) => self.version = Some(argument.version()?),
            ("upcast", _) => self.upcasts = argument.upcasts()?,
            ("payload_limit", _) => self.payload_limit = Some(argument.limit()?),
            ("crate", _) => self.krate = Some(argument.path()?),
            ("header", Field) => self.headers.push(argument.header_of_field(errors)?),
            ("header", _) => {
                for header in argument.headers(errors)? {
                    self.reject_repeated(&header, errors);
                    self.headers.push(header);
                }
            }
            ("aggregate_id", Struct | Enum | Variant) => {
                self.aggregate_id = Some(argument.source()?);
            }
            ("dedup_key", Struct | Enum | Variant) => self.dedup_key = Some(argument.source()?),
            // A field marked as id or key, and flags: being given is all they say.
            _ => argument.nothing()?,
        }
        Ok(())
    }

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
