//! The mistakes that show only when options, fields and variants are seen together.

use std::collections::HashMap;

use syn::{Ident, LitStr, Type};

use crate::argument::Errors;
use crate::ast::{Input, Shape, Variant};
use crate::attr::Options;
use crate::case::{Case, Value, Written, outer_headers};

/// A type that can be expanded.
pub(crate) struct Event<'a> {
    pub(crate) written: &'a Input<'a>,
    pub(crate) kind: Kind<'a>,
}

pub(crate) enum Kind<'a> {
    Struct(Case<'a>),
    Enum(Vec<(&'a Ident, Arm<'a>)>),
}

pub(crate) enum Arm<'a> {
    Case(Case<'a>),
    /// The variant's only field is an event of its own and answers for the variant; the enum's
    /// headers come on top.
    Delegate {
        inner: &'a Type,
        headers: Vec<(String, Value<'a>)>,
    },
}

/// Checks everything; the result means something only if no errors were pushed.
pub(crate) fn check<'a>(input: &'a Input<'a>, errors: &mut Errors) -> Event<'a> {
    let kind = match &input.shape {
        Shape::Struct(fields) => {
            require_aggregate(input, errors);
            let (ident, options) = (&input.original.ident, &input.options);
            Kind::Struct(Written { ident, options, outer: None, fields }.check(errors))
        }
        Shape::Enum(variants) => Kind::Enum(check_variants(input, variants, errors)),
    };
    Event { written: input, kind }
}

fn require_aggregate(input: &Input<'_>, errors: &mut Errors) {
    if input.options.given("aggregate").is_none() {
        let message = format!(
            "`{}` does not say what kind of thing it happens to; \
             write `#[outbox(aggregate = \"order\")]`",
            input.original.ident
        );
        errors.push(input.original.ident.span(), message);
    }
}

fn check_variants<'a>(
    input: &'a Input<'a>,
    variants: &'a [Variant<'a>],
    errors: &mut Errors,
) -> Vec<(&'a Ident, Arm<'a>)> {
    if !variants.iter().all(Variant::delegates) {
        require_aggregate(input, errors);
    } else if !variants.is_empty() {
        reject_idle_options(&input.options, errors);
    }
    let mut arms = Vec::with_capacity(variants.len());
    for variant in variants {
        let Variant { ident, options, fields, .. } = variant;
        let arm = if variant.delegates() {
            check_delegate(&input.options, variant, errors)
        } else {
            let outer = Some(&input.options);
            Some(Arm::Case(Written { ident, options, outer, fields }.check(errors)))
        };
        arms.extend(arm.map(|arm| (*ident, arm)));
    }
    reject_collisions(variants, &arms, errors);
    arms
}

fn reject_idle_options(options: &Options, errors: &mut Errors) {
    for (name, span) in options.all_given() {
        if !["aggregate", "header", "crate"].contains(&name) {
            let message = format!("every variant delegates, so `{name}` says nothing; remove it");
            errors.push(span, message);
        }
    }
}

fn check_delegate<'a>(
    outer: &'a Options,
    variant: &'a Variant<'a>,
    errors: &mut Errors,
) -> Option<Arm<'a>> {
    let ident = variant.ident;
    let on_fields = variant.fields.iter().flat_map(|field| field.options.all_given());
    for (name, span) in variant.options.all_given().chain(on_fields) {
        if name != "delegate" {
            let message =
                format!("the event inside `{ident}` answers for it; remove `{name}` or `delegate`");
            errors.push(span, message);
        }
    }
    if !variant.newtype {
        let span = variant.options.given("delegate").unwrap_or(ident.span());
        let message =
            format!("`delegate` needs one unnamed field, an event; write `{ident}(OrderEvent)`");
        errors.push(span, message);
    }
    let inner = variant.fields.first()?.ty;
    Some(Arm::Delegate { inner, headers: outer_headers(outer).collect() })
}

/// Consumers tell the events of one enum apart by type and version alone.
fn reject_collisions(variants: &[Variant<'_>], arms: &[(&Ident, Arm<'_>)], errors: &mut Errors) {
    let mut first = HashMap::new();
    for (ident, arm) in arms {
        let Arm::Case(Case { event_type, version, .. }) = arm else { continue };
        let Some(known) = first.insert((event_type, version), ident) else { continue };
        let named = variants.iter().find(|variant| variant.ident == *ident);
        let named = named.and_then(|variant| variant.options.event_type.as_ref());
        let message = format!(
            "`{known}` and `{ident}` are both `{event_type}` in version {version}; \
             give one of them `#[outbox(event_type = \"...\")]` or `#[outbox(version = 2)]`",
        );
        errors.push(named.map_or(ident.span(), LitStr::span), message);
    }
}
