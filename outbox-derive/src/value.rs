//! Where an id, key or header comes from, as an expression that gives its text.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::Member;
use syn::spanned::Spanned;

use crate::ast::Field;
use crate::case::Value;

/// Where a value is read: the fields of a struct are places, those of a variant are bound.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Struct,
    Variant,
}

/// `Value::display(&self.id)`
pub(crate) fn display(value: Value<'_>, place: Place, krate: &TokenStream) -> TokenStream {
    let value = match (value, place) {
        (Value::Field(field), Place::Struct) => {
            let member = &field.member;
            quote_spanned!(located(field.span)=> &self.#member)
        }
        (Value::Field(field), Place::Variant) => binding(field).into_token_stream(),
        (Value::Expr(expr, []), _) => {
            let value = with_own_self(expr.to_token_stream());
            quote_spanned!(located(expr.span())=> &(#value))
        }
        (Value::Expr(expr, scope), _) => {
            let value = with_own_self(expr.to_token_stream());
            let names: Vec<_> = scope.iter().map(name_in_scope).collect();
            let bindings = scope.iter().map(binding);
            quote_spanned! {located(expr.span())=>
                &{
                    let (#(#names,)*) = (#(#bindings,)*);
                    #value
                }
            }
        }
    };
    quote!(#krate::__private::Value::display(#value))
}

/// The fields that the values read, each once: `id: ref field_id,`
pub(crate) fn pattern(values: &[Value<'_>]) -> TokenStream {
    let mut fields = Vec::<&Field<'_>>::new();
    for value in values {
        let read = match value {
            Value::Field(field) => std::slice::from_ref(*field),
            Value::Expr(_, scope) => scope,
        };
        for field in read {
            if !fields.iter().any(|known| known.name == field.name) {
                fields.push(field);
            }
        }
    }
    let members = fields.iter().map(|field| &field.member);
    let bindings = fields.iter().map(|field| binding(field));
    quote!(#(#members: ref #bindings,)*)
}

/// A name that the user's names cannot meet, shown to them at `place`.
pub(crate) fn local(name: &str, place: Span) -> Ident {
    Ident::new(name, Span::mixed_site().located_at(place))
}

fn binding(field: &Field<'_>) -> Ident {
    local(&format!("field_{}", field.name), field.span)
}

/// A field as the expressions of its variant know it; `_0` where it has no name.
fn name_in_scope(field: &Field<'_>) -> Ident {
    match &field.member {
        Member::Named(ident) => ident.clone(),
        Member::Unnamed(index) => Ident::new(&format!("_{}", index.index), Span::call_site()),
    }
}

/// What a `None` names.
pub(crate) fn source(value: Value<'_>, krate: &TokenStream) -> TokenStream {
    match value {
        Value::Field(field) => field.name.to_token_stream(),
        Value::Expr(expr, _) => quote!(#krate::__private::stringify!(#expr)),
    }
}

fn located(span: Span) -> Span {
    span.resolved_at(Span::call_site())
}

/// Lets `self` mean the event also where the expression was handed through `macro_rules`.
fn with_own_self(tokens: TokenStream) -> TokenStream {
    let mend = |token| match token {
        TokenTree::Ident(mut ident) if ident == "self" => {
            ident.set_span(located(ident.span()));
            TokenTree::Ident(ident)
        }
        TokenTree::Group(group) => {
            let mut mended = Group::new(group.delimiter(), with_own_self(group.stream()));
            mended.set_span(group.span());
            TokenTree::Group(mended)
        }
        other => other,
    };
    tokens.into_iter().map(mend).collect()
}
