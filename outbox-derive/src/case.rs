//! What one struct or variant means: its defaults, its overrides, and where its values come from.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::{Expr, Ident, LitStr, Member};

use crate::argument::{Errors, Header, Source, Upcast};
use crate::ast::Field;
use crate::attr::Options;
use crate::name;
use crate::style::Style;

/// One thing that can happen: a struct or a variant.
pub(crate) struct Case<'a> {
    pub(crate) aggregate: String,
    /// `None` is the aggregate.
    pub(crate) topic: Option<String>,
    pub(crate) event_type: String,
    pub(crate) version: i16,
    pub(crate) upcasts: &'a [Upcast],
    /// `None` is the library's.
    pub(crate) payload_limit: Option<&'a Expr>,
    pub(crate) serialize_writers: bool,
    /// The parts in order; never empty.
    pub(crate) aggregate_id: Vec<Value<'a>>,
    /// The parts in order; empty when there is no key.
    pub(crate) dedup_key: Vec<Value<'a>>,
    /// Outer before inner: of two with one name the later one wins.
    pub(crate) headers: Vec<(String, Value<'a>)>,
}

#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Field(&'a Field<'a>),
    /// With the fields that it sees by name.
    Expr(&'a Expr, &'a [Field<'a>]),
}

/// A struct, or a variant inside its enum, as written.
pub(crate) struct Written<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) options: &'a Options,
    /// The enum's options.
    pub(crate) outer: Option<&'a Options>,
    pub(crate) fields: &'a [Field<'a>],
}

impl<'a> Written<'a> {
    pub(crate) fn check(&self, errors: &mut Errors) -> Case<'a> {
        let outer = self.outer.unwrap_or(self.options);
        let aggregate = outer.aggregate.as_ref().map(LitStr::value).unwrap_or_default();
        let topic = self.options.topic.as_ref().or(outer.topic.as_ref()).map(LitStr::value);
        let style = outer.rename_all.unwrap_or(Style::Snake);
        let event_type = self.event_type(&aggregate, style, errors);
        let version = self.options.version.or(outer.version).unwrap_or(1);
        let aggregate_id =
            self.key("aggregate_id", |options| options.aggregate_id.as_ref(), errors);
        let dedup_key = self.key("dedup_key", |options| options.dedup_key.as_ref(), errors);
        self.require_aggregate_id(outer, errors);
        let headers = self.headers(errors);
        let payload_limit = self.options.payload_limit.as_ref().or(outer.payload_limit.as_ref());
        let serialize_writers = [self.options, outer]
            .iter()
            .any(|options| options.given("serialize_writers").is_some());
        Case {
            aggregate,
            topic,
            event_type,
            version,
            upcasts: self.upcasts(version, errors),
            payload_limit,
            serialize_writers,
            aggregate_id,
            dedup_key,
            headers,
        }
    }

    fn event_type(&self, aggregate: &str, style: Style, errors: &mut Errors) -> String {
        if let Some(event_type) = &self.options.event_type {
            if let Some(span) = self.options.given("rename_all") {
                let message = "`event_type` is given, so `rename_all` says nothing; remove it";
                errors.push(span, message);
            }
            return event_type.value();
        }
        let name = self.ident.unraw().to_string();
        let event_type = name::default_event_type(aggregate, &name, style);
        if let Some(fault) = name::fault(&event_type).filter(|_| name::fault(aggregate).is_none()) {
            let message = format!(
                "the default event type of `{}` {fault}; write `#[outbox(event_type = \"...\")]`",
                self.ident
            );
            errors.push(self.ident.span(), message);
        }
        event_type
    }

    fn upcasts(&self, version: i16, errors: &mut Errors) -> &'a [Upcast] {
        let upcasts = &self.options.upcasts;
        for (index, upcast) in upcasts.iter().enumerate() {
            let old = upcast.version;
            if old >= version {
                let message = format!(
                    "an upcast is from an older version, and `{}` is version {version}; \
                     write `#[outbox(version = {})]`",
                    self.ident,
                    i32::from(old) + 1
                );
                errors.push(upcast.span, message);
            } else if upcasts[..index].iter().any(|known| known.version == old) {
                errors.push(upcast.span, format!("version {old} is given twice; keep one"));
            }
        }
        upcasts
    }

    fn require_aggregate_id(&self, outer: &Options, errors: &mut Errors) {
        let given = self.options.given("aggregate_id").or(outer.given("aggregate_id"));
        if given.is_none() && self.marked("aggregate_id").next().is_none() {
            let message = format!(
                "`{}` has no aggregate id; mark a field `#[outbox(aggregate_id)]`, or write \
                 `#[outbox(aggregate_id = self.expression())]` above",
                self.ident
            );
            errors.push(self.ident.span(), message);
        }
    }

    /// The parts of an id or key: from the marked fields or the own option, else from the enum's.
    fn key(
        &self,
        name: &str,
        source: impl Fn(&'a Options) -> Option<&'a Source>,
        errors: &mut Errors,
    ) -> Vec<Value<'a>> {
        let marked: Vec<_> = self.marked(name).collect();
        if let (Some(span), Some(field)) = (self.options.given(name), marked.first()) {
            let field = &field.name;
            let message =
                format!("`{name}` is given here and on field `{field}`; keep one of the two");
            errors.push(span, message);
            return Vec::new();
        }
        if !marked.is_empty() {
            return marked.into_iter().map(Value::Field).collect();
        }
        match (source(self.options), self.outer.and_then(source)) {
            (Some(Source::Expr(expr)), _) => vec![self.expr(expr, errors)],
            (None, Some(Source::Expr(expr))) => vec![Value::Expr(expr, &[])],
            (Some(Source::Fields(names)), _) => self.named(names, None, errors),
            (None, Some(Source::Fields(names))) => {
                self.named(names, Some((name, self.ident.span())), errors)
            }
            (None, None) => Vec::new(),
        }
    }

    /// An expression on a struct reaches the fields through `self`; on a variant it cannot, so
    /// there it sees them by name.
    fn expr(&self, expr: &'a Expr, errors: &mut Errors) -> Value<'a> {
        if self.outer.is_some() {
            return Value::Expr(expr, self.fields);
        }
        if let Expr::Path(path) = expr
            && let Some(ident) = path.path.get_ident()
            && self.fields.iter().any(|field| ident.unraw() == field.name)
        {
            let message = format!("`{ident}` alone is not in scope here; write `self.{ident}`");
            errors.push(ident.span(), message);
        }
        Value::Expr(expr, &[])
    }

    /// The fields with these names, which the enum's option asks for if `outer` is given.
    fn named(
        &self,
        names: &[LitStr],
        outer: Option<(&str, Span)>,
        errors: &mut Errors,
    ) -> Vec<Value<'a>> {
        let mut parts = Vec::<&'a Field<'a>>::new();
        for literal in names {
            let name = literal.value();
            let name = name.strip_prefix("r#").unwrap_or(&name);
            let found = self.fields.iter().find(|field| field.name == name);
            match (found, outer) {
                (Some(field), None) if parts.iter().any(|part| part.name == field.name) => {
                    errors.push(literal.span(), format!("field `{name}` is named twice; keep one"));
                }
                (Some(field), _) => parts.push(field),
                (None, None) => {
                    let message =
                        format!("no field `{name}` in `{}`{}", self.ident, self.hint(name));
                    errors.push(literal.span(), message);
                }
                (None, Some((option, span))) => {
                    let message = format!(
                        "`{}` has no field `{name}`, which the enum's `{option}` names; mark \
                         another one `#[outbox({option})]`",
                        self.ident
                    );
                    errors.push(span, message);
                }
            }
        }
        parts.into_iter().map(Value::Field).collect()
    }

    fn hint(&self, name: &str) -> String {
        let known: Vec<_> = self.fields.iter().map(|field| field.name.as_str()).collect();
        match name::closest(name, known.iter().copied()) {
            Some(meant) => format!(", did you mean `{meant}`?"),
            None if known.is_empty() => {
                format!(", which has no fields; a constant is written `{{ \"{name}\" }}`")
            }
            None => format!("; its fields are `{}`", known.join("`, `")),
        }
    }

    fn marked(&self, option: &str) -> impl Iterator<Item = &'a Field<'a>> {
        self.fields.iter().filter(move |field| field.options.given(option).is_some())
    }

    fn headers(&self, errors: &mut Errors) -> Vec<(String, Value<'a>)> {
        let mut headers: Vec<_> = self.outer.into_iter().flat_map(outer_headers).collect();
        for Header { name, value, .. } in &self.options.headers {
            if let (Some(name), Some(value)) = (name, value) {
                headers.push((name.value(), self.expr(value, errors)));
            }
        }
        let mut taken: Vec<_> = self.options.header_names().collect();
        for (field, header) in
            self.fields.iter().flat_map(|it| it.options.headers.iter().map(move |h| (it, h)))
        {
            let name = match (&header.name, &field.member) {
                (Some(name), _) => name.value(),
                (None, Member::Named(_)) => field.name.clone(),
                (None, Member::Unnamed(_)) => {
                    let message = "an unnamed field gives the header no name; \
                                   write `#[outbox(header = \"name\")]`";
                    errors.push(header.span, message);
                    continue;
                }
            };
            if taken.contains(&name) {
                errors.push(header.span, format!("header `{name}` is given twice; keep one"));
            }
            taken.push(name.clone());
            headers.push((name, Value::Field(field)));
        }
        headers
    }
}

/// The headers that an enum gives each of its variants.
pub(crate) fn outer_headers(options: &Options) -> impl Iterator<Item = (String, Value<'_>)> {
    options.headers.iter().filter_map(|header| {
        let (name, value) = (header.name.as_ref()?, header.value.as_ref()?);
        Some((name.value(), Value::Expr(value, &[])))
    })
}
