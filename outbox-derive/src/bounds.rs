//! What a generic event demands of its parameters.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{
    GenericArgument, Generics, Ident, PathArguments, Type, TypePath, WherePredicate, parse_quote,
};

use crate::case::{Case, Value};
use crate::check::{Arm, Event, Kind};

/// The generics of the type with these bounds added, if it has type parameters:
///
/// - `Self: Serialize`, whatever that takes;
/// - `T: Display` for a field that is an id, key or header and whose type is `T`, `T::Id`, or an
///   `Option` of one;
/// - `Inner<T>: OutboxEvent` for a variant that delegates.
///
/// Without type parameters nothing is added, as an unmet bound would hide the reason.
pub(crate) fn bounded(event: &Event<'_>, krate: &TokenStream) -> Generics {
    let mut generics = event.written.original.generics.clone();
    let parameters: Vec<Ident> = generics.type_params().map(|it| it.ident.clone()).collect();
    if parameters.is_empty() {
        return generics;
    }
    let mut bounds: Vec<WherePredicate> =
        vec![parse_quote!(Self: #krate::__private::serde::Serialize)];
    match &event.kind {
        Kind::Struct(case) => bounds.extend(displayed(case, &parameters, krate)),
        Kind::Enum(arms) => bounds.extend(arms.iter().flat_map(|(_, arm)| match arm {
            Arm::Case(case) => displayed(case, &parameters, krate),
            Arm::Delegate { inner, .. } if mentions(inner.to_token_stream(), &parameters) => {
                vec![parse_quote!(#inner: #krate::OutboxEvent)]
            }
            Arm::Delegate { .. } => Vec::new(),
        })),
    }
    generics.make_where_clause().predicates.extend(bounds);
    generics
}

/// The generics of the type with `Inner<T>: DescribedEvent` for a variant that delegates.
pub(crate) fn described(event: &Event<'_>, krate: &TokenStream) -> Generics {
    let mut generics = event.written.original.generics.clone();
    let parameters: Vec<Ident> = generics.type_params().map(|it| it.ident.clone()).collect();
    let Kind::Enum(arms) = &event.kind else { return generics };
    let bounds: Vec<WherePredicate> = arms
        .iter()
        .filter_map(|(_, arm)| match arm {
            Arm::Delegate { inner, .. } if mentions(inner.to_token_stream(), &parameters) => {
                Some(parse_quote!(#inner: #krate::describe::DescribedEvent))
            }
            _ => None,
        })
        .collect();
    if !bounds.is_empty() {
        generics.make_where_clause().predicates.extend(bounds);
    }
    generics
}

fn displayed(case: &Case<'_>, parameters: &[Ident], krate: &TokenStream) -> Vec<WherePredicate> {
    let headers = case.headers.iter().map(|(_, value)| value);
    let values = case.aggregate_id.iter().chain(&case.dedup_key).chain(headers);
    values
        .filter_map(|value| match value {
            Value::Field(field) => Some(shown(field.ty)).filter(|ty| is_parameter(ty, parameters)),
            Value::Expr(..) => None,
        })
        .map(|ty| parse_quote!(#ty: #krate::__private::Display))
        .collect()
}

/// The type that is displayed: behind groups, references and `Option`.
fn shown(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => shown(&group.elem),
        Type::Paren(paren) => shown(&paren.elem),
        Type::Reference(reference) => shown(&reference.elem),
        Type::Path(path) => option_argument(path).map_or(ty, shown),
        _ => ty,
    }
}

fn option_argument(path: &TypePath) -> Option<&Type> {
    let last = path.path.segments.last().filter(|segment| segment.ident == "Option")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first() {
        Some(GenericArgument::Type(inner)) if arguments.args.len() == 1 => Some(inner),
        _ => None,
    }
}

/// `T`, `T::Id` or `<T as Named>::Id`.
fn is_parameter(ty: &Type, parameters: &[Ident]) -> bool {
    let Type::Path(TypePath { qself, path }) = ty else { return false };
    match (qself, path.segments.first()) {
        (Some(qself), _) => is_parameter(shown(&qself.ty), parameters),
        (None, Some(first)) => path.leading_colon.is_none() && parameters.contains(&first.ident),
        (None, None) => false,
    }
}

fn mentions(tokens: TokenStream, parameters: &[Ident]) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => parameters.contains(&ident),
        TokenTree::Group(group) => mentions(group.stream(), parameters),
        _ => false,
    })
}
