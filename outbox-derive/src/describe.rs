//! What is known without a value: the implementation of `DescribedEvent`.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Ident, LitStr};

use crate::ast::Input;
use crate::case::Case;
use crate::check::{Arm, Event, Kind};

/// ```text
/// const EVENTS: &'static [Described] = &[Described::Event(EventDescription::new(
///     "order.created", 1, "order").topic("orders").variant("Created"))];
/// fn upcast(..) -> .. { match (event_type, event_version) { ("order.created", 1) => .. } }
/// ```
pub(crate) fn items(event: &Event<'_>, krate: &TokenStream) -> TokenStream {
    let described = quote!(#krate::describe::Described);
    let private = quote!(#krate::__private);
    let events: Vec<_> = match &event.kind {
        Kind::Struct(case) => vec![own(case, None, krate)],
        Kind::Enum(arms) => arms
            .iter()
            .map(|(variant, arm)| {
                let name = serde_name(event.written, variant);
                match arm {
                    Arm::Case(case) => own(case, Some(&name), krate),
                    Arm::Delegate { inner, headers } => {
                        let headers = names(headers.iter().map(|(name, _)| name));
                        let of = quote_spanned!(inner.span()=>
                            <#inner as #krate::describe::DescribedEvent>::EVENTS);
                        quote!(#described::Delegated {
                            variant: #name, events: #of, headers: &[#(#headers),*],
                        })
                    }
                }
            })
            .collect(),
    };
    let upcast = upcast(event, &private);
    quote! {
        const EVENTS: &'static [#described] = &[#(#events),*];
        #upcast
    }
}

fn own(case: &Case<'_>, variant: Option<&str>, krate: &TokenStream) -> TokenStream {
    let Case { event_type, version, aggregate, .. } = case;
    let topic = case.topic.as_ref().map(|topic| quote!(.topic(#topic)));
    let headers = names(case.headers.iter().map(|(name, _)| name));
    let headers = (!headers.is_empty()).then(|| quote!(.headers(&[#(#headers),*])));
    let variant = variant.map(|variant| quote!(.variant(#variant)));
    let versions = case.upcasts.iter().map(|upcast| upcast.version);
    let upcasts = (!case.upcasts.is_empty()).then(|| quote!(.upcasts(&[#(#versions),*])));
    quote! {
        #krate::describe::Described::Event(
            #krate::describe::EventDescription::new(#event_type, #version, #aggregate)
                #topic #headers #variant #upcasts
        )
    }
}

/// Each once: of two with one name the later one wins.
fn names<'a>(all: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut names = Vec::new();
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn upcast(event: &Event<'_>, private: &TokenStream) -> Option<TokenStream> {
    let cases: Vec<_> = match &event.kind {
        Kind::Struct(case) => vec![case],
        Kind::Enum(arms) => arms
            .iter()
            .filter_map(|(_, arm)| match arm {
                Arm::Case(case) => Some(case),
                Arm::Delegate { .. } => None,
            })
            .collect(),
    };
    let arms: Vec<_> = cases
        .iter()
        .flat_map(|case| case.upcasts.iter().map(|upcast| (&case.event_type, upcast)))
        .map(|(event_type, upcast)| {
            let (version, from) = (upcast.version, &upcast.from);
            let read = quote_spanned! {from.span()=>
                <Self as #private::Upcast<#from>>::from_payload
            };
            quote!((#event_type, #version) => #private::Option::Some(#read(payload)),)
        })
        .collect();
    (!arms.is_empty()).then(|| {
        quote! {
            fn upcast(
                event_type: &#private::str,
                event_version: #private::i16,
                payload: &[#private::u8],
            ) -> #private::Option<#private::Result<Self, #private::serde_json::Error>> {
                match (event_type, event_version) {
                    #(#arms)*
                    _ => #private::Option::None,
                }
            }
        }
    })
}

/// What serde names the variant, but for its case: `rename`, else the identifier.
fn serde_name(written: &Input<'_>, ident: &Ident) -> String {
    let syn::Data::Enum(data) = &written.original.data else { return String::new() };
    let attributes = data.variants.iter().filter(|variant| variant.ident == *ident);
    let renamed = attributes.flat_map(|variant| &variant.attrs).find_map(renamed);
    renamed.unwrap_or_else(|| ident.unraw().to_string())
}

/// `#[serde(rename = "...")]`, or `rename(serialize = "...")`; serde reports what is wrong with it.
fn renamed(attribute: &Attribute) -> Option<String> {
    if !attribute.path().is_ident("serde") {
        return None;
    }
    let mut name = None;
    let _ = attribute.parse_nested_meta(|meta| {
        if meta.path.is_ident("rename") && meta.input.peek(syn::token::Paren) {
            return meta.parse_nested_meta(|inner| {
                let value = inner.value()?.parse::<LitStr>()?.value();
                if inner.path.is_ident("serialize") {
                    name = Some(value);
                }
                Ok(())
            });
        }
        if meta.input.peek(syn::Token![=]) {
            let value = meta.value()?.parse::<syn::Expr>()?.to_token_stream();
            if meta.path.is_ident("rename") {
                name = syn::parse2::<LitStr>(value).ok().map(|name| name.value());
            }
        } else if meta.input.peek(syn::token::Paren) {
            meta.parse_nested_meta(|_| Ok(()))?;
        }
        Ok(())
    });
    name
}
